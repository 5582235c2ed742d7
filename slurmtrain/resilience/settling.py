"""What follows an attempt: its record is closed, its nodes are swept, bad ones avoided, the budget charged, and the next step decided."""

from __future__ import annotations

from collections.abc import Callable

from slurmtrain.errors import EXIT_NO_RESTART
from slurmtrain.resilience.account import close_account
from slurmtrain.resilience.allocation import Grant
from slurmtrain.resilience.attempt import Ended
from slurmtrain.resilience.budget import Allowed, Exhausted
from slurmtrain.resilience.chain import is_last_link
from slurmtrain.resilience.cleaning import clean
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.deadline import another_start_s
from slurmtrain.resilience.ending import Again, End, Scene, decide_end
from slurmtrain.resilience.exclude import blamed
from slurmtrain.resilience.faulted import log_end
from slurmtrain.resilience.nodes import Learnt
from slurmtrain.resilience.records import AttemptRecord, Owner, close_attempt, read_owner
from slurmtrain.resilience.selection import avoid_nodes, least_nodes, standing
from slurmtrain.resilience.tracker import Tracker
from slurmtrain.telemetry.history import cancelled, read_acts
from slurmtrain.telemetry.reader import EventTail

_OVER = frozenset({"finished", "stopped", "config"})


def settle(c: Composition, owner: Owner, ended: Ended, learnt: Learnt) -> End | Again:
    """All of it, in this order; a full disk keeps nothing from happening."""
    outcome, record = ended.outcome, ended.record
    mine = _still_mine(c, owner)
    if record is not None and mine:
        try_to_write(c, "attempt.json", lambda: close_attempt(c.run, c.disk, record, outcome))
    c.say(f"attempt {owner.attempt} {outcome.kind}: {outcome.cause}")
    if not mine:
        return End(EXIT_NO_RESTART, why="another attempt, or a deputy, has this run now")
    blames = blamed(outcome, ended.lost)
    avoid_nodes(c, blames, owner.attempt)
    if outcome.kind == "node_failure":
        learnt.bad.update({one.node: f"{one.reason}: {one.evidence}" for one in blames})
    clean(c, owner.attempt, learnt.world)
    if record is not None:
        log_end(c, record, outcome, [one.node for one in blames])
    after = decide_end(_scene(c, ended, close_account(c, owner.attempt, outcome), learnt))
    if isinstance(after, Again):  # what was written while Slurm's word was waited for would be taken for the end of the next one
        try_to_write(c, "submit/exit_code", lambda: c.run.exit_code.unlink(missing_ok=True))
    return after


def _scene(c: Composition, ended: Ended, budget: Allowed | Exhausted, learnt: Learnt) -> Scene:
    asks = bool(c.allocation.job_id) and ended.outcome.kind not in _OVER
    # Slurm that did not answer at the start has had its time; it is not asked once more.
    grant = c.allocation.look(fresh=asks) if learnt.granted else Grant(())
    there = standing(c, learnt, grant)
    slurm = c.setup.job.slurm
    return Scene(
        ended.outcome,
        job=grant.job,
        own_will=ended.own_will,
        foreground=c.foreground,
        segment=slurm.array is not None,
        chain=slurm.continuation == "chain",
        last_link=is_last_link(c.environ),
        budget=budget,
        cancelled=bool(c.allocation.job_id) and cancelled(read_acts(c.run), c.allocation.job_id),
        good=len(there.usable),
        needed=least_nodes(c),
        no_kill=c.outlives_nodes,
        in_place=c.setup.job.recovery.in_place,
        time_left_s=None if grant.end_time is None else grant.end_time - c.clock.time(),
        needed_s=_needed_s(c, ended.record),
    )


def _needed_s(c: Composition, record: AttemptRecord | None) -> float:
    """What another start takes, by what the events tell of this one and of all saves."""
    tracker = Tracker(record.attempt if record else 0)
    mine = tracker.take(EventTail(c.run.event_file(0)).poll())
    spoke = next((event.t for event in mine if event.kind == "start"), None)
    return another_start_s(record.t_start if record else 0.0, spoke, [tracker.slowest_save_s], tracker.step_s)


def _still_mine(c: Composition, owner: Owner) -> bool:
    """Not where another attempt was claimed meanwhile, or a deputy has acted for this supervisor, which was taken for lost."""
    now = read_owner(c.run.owner_json)
    return (now is None or now.attempt == owner.attempt) and not c.run.attempt(owner.attempt).deputy.exists()


def try_to_write(c: Composition, what: str, write: Callable[[], object]) -> None:
    """A full or read-only disk must not keep the rest of the end from happening."""
    try:
        write()
    except OSError as error:
        c.say(f"cannot write {what}: {error.strerror}")
