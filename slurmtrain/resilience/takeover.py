"""What a supervisor finds that was started for a killed one, in the same start of the job: its ranks may run on, its record is open.

The ranks' step is found by its name and ended, the record is closed by what the ranks left, and the run goes on in the same allocation.
Attempts of earlier starts need nothing: Slurm, or whoever ended them, ended all that was theirs.
"""

from __future__ import annotations

from slurmtrain.errors import EXIT_NO_RESTART, EXIT_OK, LaunchError
from slurmtrain.resilience.account import open_account
from slurmtrain.resilience.attempt import Ended, outcome_of
from slurmtrain.resilience.classify import Evidence, Verdict, classify
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.ending import End
from slurmtrain.resilience.faulted import log_end, log_missed, missed_outcome
from slurmtrain.resilience.judgement import last_step_is_saved
from slurmtrain.resilience.nodes import Learnt
from slurmtrain.resilience.ranks import rank_spec
from slurmtrain.resilience.records import AttemptRecord, Outcome, Owner, close_attempt, read_attempts, read_owner
from slurmtrain.resilience.settling import try_to_write
from slurmtrain.telemetry.exitfile import read_exit_records

GRACE_S = 5.0
_BELIEVED = frozenset({"finished", "stopped", "config"})


def take_over(c: Composition, owner: Owner, learnt: Learnt) -> tuple[Ended, End] | None:
    """Put the run in order before the first attempt of this supervisor; where there is to be none: the newest end, and what follows."""
    records = [r for r in read_attempts(c.run) if r.attempt < owner.attempt]
    mine = [r for r in records if (r.job_id, r.restart_count) == (c.allocation.job_id, c.allocation.restart_count)]
    ended = _inherit(c, mine[-1], learnt) if mine and mine[-1] is records[-1] else None
    if records and records[-1] not in mine and c.allocation.job_id:
        log_missed(c, records[-1])
    learnt.attempts = len(mine) if c.allocation.job_id else 0
    spent = open_account(c)
    if records and records[-1] not in mine and c.allocation.job_id:
        _close_missed(c, records[-1])
    if ended is not None:
        return ended, End(EXIT_OK, why="the run is complete")
    if spent is None:
        return None
    last = records[-1].outcome or Outcome("node_failure", "nobody lived to say how it ended", category="node_failure")
    return Ended(None, last), End(EXIT_NO_RESTART, why=f"not started again: {spent.why}")


def _close_missed(c: Composition, record: AttemptRecord) -> None:
    """The record of an earlier start's attempt that nobody lived to close: lost with the batch host, as a rule."""
    if record.outcome is None:
        outcome = missed_outcome(c, record)
        try_to_write(c, "attempt.json", lambda: close_attempt(c.run, c.disk, record, outcome))
        c.say(f"attempt {record.attempt} {outcome.kind}: {outcome.cause}")


def _inherit(c: Composition, record: AttemptRecord, learnt: Learnt) -> Ended | None:
    """End what is left of an attempt whose supervisor was killed, and close it."""
    left = _end_left(c, record)
    if record.outcome is not None and not left:
        return None
    learnt.left, learnt.world = record.attempt, record.nodes
    verdict = _verdict(c, record, left=left)
    outcome = outcome_of(c, verdict)
    try_to_write(c, "attempt.json", lambda: close_attempt(c.run, c.disk, record, outcome))
    c.say(f"attempt {record.attempt} {outcome.kind}: {outcome.cause}")
    log_end(c, record, outcome)
    return Ended(record, outcome) if verdict.kind == "finished" else None


def _end_left(c: Composition, record: AttemptRecord) -> bool:
    spec = rank_spec(c.setup, record.attempt, record.nodes, c.allocation.step_job_id, c.environ, command=c.command)
    try:
        return c.launcher.end_left(spec, GRACE_S)
    except LaunchError as error:
        c.say(str(error))
        return True


def _verdict(c: Composition, record: AttemptRecord, *, left: bool) -> Verdict:
    """What the ranks agreed on is believed; of all else the supervisor's end was the cause."""
    records = read_exit_records(c.run.attempt(record.attempt).exit_dir)
    seen = Evidence(record.nodes, record.tasks_per_node, records, spoke=True, down=frozenset(), complete=last_step_is_saved(c))
    verdict = classify(seen)
    if records and verdict.kind in _BELIEVED:
        return verdict
    old = read_owner(c.run.attempt(record.attempt).claim)
    who = f"its supervisor (pid {old.pid} on {old.host})" if old is not None else "its supervisor"
    what = "its ranks were ended by the next one" if left else "no rank of it was left"
    step = max((r.step for r in records.values()), default=None)
    return Verdict("failed", f"{who} was ended without a word; {what}", step=step, category="launch_failure")
