"""A drill's run folder, and Slurm's word on its nodes -> the row."""

from __future__ import annotations

import re

from slurmtrain.cli.doors import Doors
from slurmtrain.cli.facts import see
from slurmtrain.cli.report import report
from slurmtrain.errors import SlurmError
from slurmtrain.report.drilled import Drilled, Row, row_of
from slurmtrain.resilience.drills import Kind
from slurmtrain.resilience.records import AttemptRecord, read_attempts
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.reader import read_events

_OUTLIVE = re.compile(r"; ([\d ]+) outlive SIGKILL")


def row_for(
    run: RunDir,
    kind: Kind,
    doors: Doors,
    *,
    state: str,
    struck_t: float | None = None,
    reference: RunDir | None = None,
    left: int | None = None,
) -> Row:
    """The row of a drill that is over. `left`: processes that somebody has counted, else as the agents told."""
    records = read_attempts(run)
    told = Drilled(
        kind,
        records,
        read_events(run.events),
        state,
        struck_t,
        read_events(reference.events) if reference is not None else None,
        left if left is not None else left_by_word(run),
        drained(records, doors),
        held=state in {"PENDING", "REQUEUED"},
        category=report(see(run, doors)).category,
    )
    return row_of(told)


def left_by_word(run: RunDir) -> int | None:
    """Processes that outlived the sweep, by the job's log; None where nobody watched the nodes, or there is no log."""
    logs = list(run.path.glob("slurm-*.out"))
    text = "\n".join(path.read_text(errors="replace") for path in logs)
    if not logs or "unwatched" in text:
        return None
    return sum(len(found.split()) for found in _OUTLIVE.findall(text))


def drained(records: list[AttemptRecord], doors: Doors) -> tuple[str, ...] | None:
    """Nodes that were used and are drained now; None where Slurm does not tell."""
    names = sorted({node for record in records if record.job_id for node in (*record.nodes, *record.spares)})
    try:
        return tuple(one.name for one in doors.slurm.nodes(names) if any("DRAIN" in state for state in one.states)) if names else None
    except SlurmError:
        return None
