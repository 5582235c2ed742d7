"""`slurmtrain logs`: what the supervisor printed, or what the ranks of an attempt printed; with -f to the end of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import examples, root_option
from slurmtrain.rundir import RunDir

POLL_S = 0.5
ASK_S = 5.0
_BLOCK = 1 << 20


@click.command(epilog=examples("slurmtrain logs -f my-run", "slurmtrain logs my-run --rank 3", "slurmtrain logs 4711 --attempt 1"))
@click.argument("name", metavar="RUN|JOBID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@click.option("--attempt", type=click.IntRange(min=1), default=None, metavar="A", help="What the ranks of attempt A printed.")
@click.option("--rank", type=click.IntRange(min=0), default=None, metavar="K", help="What rank K printed [attempt: the newest].")
@root_option
@click.pass_context
def command(ctx: click.Context, name: str, *, follow: bool, attempt: int | None, rank: int | None, root: Path | None) -> None:
    """Show the log of a run, a rank or an attempt.

    Without --attempt and --rank: the lines of the supervisor, the newest job's slurm-JOBID.out.
    """
    from slurmtrain.cli.facts import locate

    doors = doors_of(ctx)
    run = locate(name, root, doors)

    def files() -> Sequence[Path]:
        return job_files(run) if attempt is None and rank is None else attempt_files(run, attempt, rank)

    printer = Printer(files)
    if not printer.advance() and not follow:
        raise click.ClickException(_nothing(run, attempt, rank, doors))
    if follow:
        _follow(run, doors, printer)


def job_files(run: RunDir) -> list[Path]:
    """The newest job's output; jobs write one after another."""
    found = [path for path in run.path.glob("slurm-*.out") if path.is_file()]
    return [max(found, key=lambda path: (path.stat().st_mtime_ns, path.name))] if found else []


def attempt_files(run: RunDir, attempt: int | None, rank: int | None) -> list[Path]:
    """Logs of an attempt (None: the newest): of all nodes, or of a rank: its own, which holds its error, and its node's."""
    from slurmtrain.resilience.records import read_attempt

    number = attempt or max(run.attempt_numbers(), default=0)
    folder = run.attempt(number)
    if rank is None:
        return [p for p in sorted(folder.path.glob("*.log")) if p.stat().st_size] if folder.path.is_dir() else []
    record = read_attempt(run, number)
    nodes = sorted(folder.path.glob("node-*.log"))
    node = record.node_of(rank) if record else ""
    own = [p for p in nodes if record is not None and node and _index(p) == _log_index(record.nodes, node)]
    return [p for p in (folder.rank_log(rank), *(own if len(nodes) > 1 else nodes)) if p.is_file()]


def _index(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _log_index(nodes: Sequence[str], node: str) -> int:
    """The number of the node's log: srun counts in its own, sorted order of nodes."""
    from slurmtrain.slurm.hostlist import expand, fold

    return list(expand(fold(nodes))).index(node)


def _nothing(run: RunDir, attempt: int | None, rank: int | None, doors: Doors) -> str:
    """Why there is nothing to see."""
    from slurmtrain.cli.facts import newest_attempt, see

    if attempt is None and rank is None:
        state = see(run, doors).state
        return f"run {run.name}: its jobs have printed nothing yet; it is {state.state}{f': {state.reason}' if state.reason else ''}"
    numbers, newest = run.attempt_numbers(), newest_attempt(run)
    if not numbers:
        return f"run {run.name}: no attempt was made yet (slurmtrain status {run.name})"
    if attempt is not None and attempt not in numbers:
        return f"run {run.name}: there is no attempt {attempt}: there are {', '.join(map(str, numbers))}"
    if rank is not None and newest is not None and rank >= newest.world:
        return f"run {run.name}: there is no rank {rank}: there are 0 to {newest.world - 1}"
    what = f"rank {rank}" if rank is not None else "the ranks"
    return f"run {run.name}: {what} printed nothing in attempt {attempt or numbers[-1]}; steps are in slurmtrain logs {run.name}"


class Printer:
    """Prints what is new in some files; a header goes before each where there are several."""

    def __init__(self, files: Callable[[], Sequence[Path]]) -> None:
        self._files = files
        self._offsets: dict[Path, int] = {}
        self._last: Path | None = None

    def advance(self) -> bool:
        """Whether there was anything."""
        files = self._files()
        printed = [self._print(path, headed=len(files) > 1 or bool(self._offsets.keys() - {path})) for path in files]
        return any(printed)

    def _print(self, path: Path, *, headed: bool) -> bool:
        anything = False
        with open(path, "rb") as file:
            file.seek(self._offsets.get(path, 0))
            while data := file.read(_BLOCK):
                if headed and self._last != path:
                    click.echo(f"==> {path.name} <==")
                self._last, anything = path, True
                sys.stdout.write(data.decode(errors="replace"))
            self._offsets[path] = file.tell()
        sys.stdout.flush()
        return anything


def _follow(run: RunDir, doors: Doors, printer: Printer) -> None:
    """Until the run is over; the state is asked for every few seconds."""
    from slurmtrain.cli.facts import see

    asked_at, waited_for = float("-inf"), ""
    while True:
        now = doors.clock.monotonic()
        if now - asked_at >= ASK_S or run.finished.exists():
            asked_at = now
            state = see(run, doors).state
            if state.over:
                printer.advance()
                click.echo(f"run {run.name} is {state.state}: {state.reason}", err=True)
                return
            waits = f"run {run.name} is {state.state}: {state.reason}" if state.state in {"PENDING", "REQUEUED"} else ""
            if waits and waits != waited_for:
                click.echo(waits, err=True)
            waited_for = waits
        printer.advance()
        doors.clock.sleep(POLL_S)
