"""Reading events: all of a run, or what is new since the last look. Torn and foreign lines are skipped, never an error."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from slurmtrain.telemetry.events import Event


def parse_lines(data: bytes) -> list[Event]:
    """The events among the lines of a file; what is not one (torn, foreign, blank) is left out."""
    events = []
    for line in data.split(b"\n"):
        try:
            events.append(Event.from_line(line.decode(errors="replace")))
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue
    return events


def read_events(events_dir: Path) -> list[Event]:
    """Events of all nodes, by attempt and time; empty where there is no folder. A file that cannot be read counts as empty."""
    events: list[Event] = []
    for path in sorted(events_dir.glob("*.jsonl")):
        try:
            events += parse_lines(path.read_bytes())
        except OSError:
            continue
    return sorted(events, key=lambda event: (event.attempt, event.t))


def steps(events: Iterable[Event]) -> dict[int, Event]:
    """The `step` event of each step, ascending; the highest attempt wins, and of one attempt the last."""
    best: dict[int, Event] = {}
    for event in events:
        step = event.fields.get("step")
        if event.kind != "step" or not isinstance(step, int):
            continue
        if step not in best or event.attempt >= best[step].attempt:
            best[step] = event
    return dict(sorted(best.items()))


class EventTail:
    """What is new in one file since the last look.

    A line counts when its newline is there. A file that is not there yet is empty; one that has become shorter, or is another file
    of the same name, is read again from its start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._inode = 0

    def poll(self) -> list[Event]:
        """New events; empty also while the file cannot be read."""
        try:
            with open(self.path, "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._offset:
                    self._inode, self._offset = found.st_ino, 0
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return parse_lines(whole)
