"""A run folder -> its story: what attempts, people and rank 0 have left behind."""

from __future__ import annotations

from slurmtrain.report.marks import read_lines, tell
from slurmtrain.report.windows import Story
from slurmtrain.resilience.records import read_attempts
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.history import read_acts


def read_story(run: RunDir, *, now: float | None = None, waits: bool = False) -> Story:
    """The story of a run as far as its files tell; they may be torn or missing. `now`, `waits`: as in `Story`."""
    return Story(read_attempts(run), read_acts(run), tell(read_lines(run.event_file(0))), now, waits)
