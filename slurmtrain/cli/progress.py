"""`slurmtrain status RUN --watch`: a live display on a terminal, plain lines elsewhere, until the run is over."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slurmtrain.cli.doors import Doors
from slurmtrain.cli.facts import config_of, see
from slurmtrain.cli.report import Report, lines, progress_text, report
from slurmtrain.errors import EXIT_FAULT, EXIT_OK
from slurmtrain.resilience.lines import event_line, stamp
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.reader import EventTail

POLL_S = 0.5
ASK_S = 5.0
_RECENT = 6
Show = Callable[[Report, list[str]], None]
"""Called at each look with the report and the new lines."""


def follow(run: RunDir, doors: Doors, word: str) -> int:
    """Follow to the end; 0 when the run finished or a person stopped it, else 1."""
    with _live() if sys.stdout.isatty() else _plain() as show:
        told = until_over(run, doors, word, show)
    for label, text in lines(told):
        sys.stdout.write(f"{label:<11} {text}\n")
    return EXIT_OK if told.state in {"FINISHED", "STOPPED"} else EXIT_FAULT


def until_over(run: RunDir, doors: Doors, word: str, show: Show) -> Report:
    """Events are read twice a second; the state is asked for every few seconds, and at once when the newest attempt has ended."""
    config = config_of(run)
    steps = (config.steps or 0) if config else 0
    tokens = config.tokens_per_step if config else 0
    tail, asked_at, told = EventTail(run.event_file(0)), float("-inf"), None
    while True:
        fresh = [line for event in tail.poll() if (line := _line(event, steps, tokens))]
        now = doors.clock.monotonic()
        if told is None or now - asked_at >= ASK_S or run.finished.exists():
            told, asked_at = report(see(run, doors), word=word), now
            over = told.state not in {"PENDING", "RUNNING", "REQUEUED"}
            if over:
                fresh += [line for event in tail.poll() if (line := _line(event, steps, tokens))]
                show(told, fresh)
                return told
        show(told, fresh)
        doors.clock.sleep(POLL_S)


def _line(event: Event, steps: int, tokens: int) -> str | None:
    line = event_line(event, steps=steps, tokens_per_step=tokens) if event.rank == 0 or event.kind == "error" else None
    return f"{stamp(event.t)} {line}" if line else None


@contextmanager
def _plain() -> Iterator[Show]:
    """One line for each event and each change of state."""
    said = ""

    def show(told: Report, fresh: list[str]) -> None:
        nonlocal said
        for line in fresh:
            sys.stdout.write(line + "\n")
        word = f"{told.state}{f': {told.reason}' if told.reason else ''}"
        if word != said:
            said = word
            sys.stdout.write(word + "\n")
        sys.stdout.flush()

    yield show


@contextmanager
def _live() -> Iterator[Show]:
    """A panel that stays in place and goes at the end: state, bar, the newest lines."""
    recent: list[str] = []
    console = Console(highlight=False, markup=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(told: Report, fresh: list[str]) -> None:
            recent.extend(fresh)
            del recent[:-_RECENT]
            live.update(_panel(told, recent), refresh=True)

        yield show


def _panel(told: Report, recent: list[str]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for label, text in lines(told):
        if label not in {"step", "next"}:
            table.add_row(Text(label, style="bold"), Text(text))
    bar = Table.grid(padding=(0, 2))
    bar.add_row(ProgressBar(total=told.steps or 1, completed=told.step, width=50), Text(f"step {progress_text(told)}"))
    newest = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in recent]
    return Group(table, bar, *newest)
