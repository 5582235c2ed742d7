"""The run's budget as a supervisor keeps it: opened at its start, charged at each attempt's end, told when it is spent. Thin deeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from slurmtrain.errors import SlurmError
from slurmtrain.resilience.budget import (
    Allowed,
    Exhausted,
    Spent,
    charge,
    judge,
    made_a_step,
    opened,
    over,
    read_budget,
    summary,
    write_budget,
)
from slurmtrain.resilience.chain import Barred, barred
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.exclude import read_excluded
from slurmtrain.resilience.judgement import durable_step
from slurmtrain.resilience.records import AttemptRecord, Outcome, read_attempts
from slurmtrain.resilience.requeue import Wish, arrange, requeue
from slurmtrain.resilience.signals import TERM
from slurmtrain.slurm.hostlist import expand
from slurmtrain.telemetry.history import add_act, cancelled, read_acts
from slurmtrain.units import counted


def barred_link(c: Composition) -> Barred | None:
    """Why this job makes no attempt, where it is a link of a chain that has come to its end."""
    if c.setup.job.slurm.continuation != "chain" or not c.allocation.job_id:
        return None
    records = read_attempts(c.run)
    by_person = cancelled(read_acts(c.run), c.allocation.job_id) or _cancelled_unheard(c)
    return barred(c.allocation.job_id, read_budget(c.run), records[-1] if records else None, cancelled=by_person)


def _cancelled_unheard(c: Composition) -> bool:
    """Whether a person's scancel ended the link before this one, while no supervisor lived to write it down: it is now, for later links."""
    array, _, own = c.allocation.job_id.partition("_")
    if c.client is None or not own.isdecimal() or int(own) < 1:
        return False
    try:
        job = c.client.job(f"{array}_{int(own) - 1}")
    except SlurmError:
        return False
    if job is None or job.state != "CANCELLED":
        return False
    with suppress(OSError):
        add_act(c.run, c.disk, c.clock.time(), "cancel", job_id=array, detail=f"scancel of link {int(own) - 1}, by Slurm's word")
    return True


def open_account(c: Composition) -> Exhausted | None:
    """Before the first attempt of a supervisor: charge what nobody lived to charge; why there is no attempt, where that was too much.

    A disk that refuses is told of by the attempt.
    """
    records, spent = read_attempts(c.run), _spent(c)
    now = opened(spent, c.allocation.job_id, durable_step(c), records)
    missed = _starts_without_attempt(c, max((r.restart_count for r in records if r.job_id == c.allocation.job_id), default=-1))
    if missed:
        c.say(
            f"{counted(missed, 'start')} of this job before this one made no attempt: held by Slurm (a prolog that failed), or lost at once"
        )
    allowed = _judged(c, spent, now, records)
    if isinstance(allowed, Exhausted):
        now = over(now, allowed.why)
        _tell(c, now)
    if now != spent:
        with suppress(OSError):
            _keep(c, now)
    return allowed if isinstance(allowed, Exhausted) else None


def _spent(c: Composition) -> Spent:
    """A budget that could not be written counts all the same: a full disk buys no restarts."""
    return c.unwritten[-1] if c.unwritten else read_budget(c.run)


def _keep(c: Composition, spent: Spent) -> None:
    """Raises OSError."""
    c.unwritten[:] = [spent]
    write_budget(c.run, c.disk, spent)
    c.unwritten.clear()


def _judged(c: Composition, before: Spent, now: Spent, records: Sequence[AttemptRecord]) -> Allowed | Exhausted:
    """Judge by the newest of the attempts that were charged just now; where none was there is nothing to judge."""
    newest = records[-1].outcome if records else None
    if now.job_id == before.job_id and now.over:
        return Exhausted(now.over)  # Slurm has requeued the job all the same: a node of it was lost
    if now.attempt == before.attempt or now.job_id != before.job_id:
        return Allowed()
    return judge(now, (newest.category if newest else None) or "node_failure", c.setup.job.recovery)


def _tell(c: Composition, spent: Spent) -> None:
    for line in summary(read_attempts(c.run), spent):
        c.say(f"tried: {line}")


def _starts_without_attempt(c: Composition, newest: int) -> int:
    return max(0, c.allocation.restart_count - newest - 1) if c.allocation.job_id else 0


def close_account(c: Composition, attempt: int, outcome: Outcome) -> Allowed | Exhausted:
    """Charge an attempt's end, and say whether there may be another; what was tried, when there may not."""
    recovery, cause = c.setup.job.recovery, outcome.category or "rank_crash"
    durable = outcome.last_durable_step
    spent = charge(_spent(c), cause, durable, progressed_first_step=made_a_step(outcome), attempt=attempt)
    allowed = judge(spent, cause, recovery)
    if isinstance(allowed, Exhausted):
        spent = over(spent, allowed.why)
    try:
        _keep(c, spent)
    except OSError as error:
        c.say(f"cannot write {c.run.budget_json}: {error.strerror}")
    if spent.over and outcome.kind not in {"finished", "stopped"}:
        _tell(c, spent)
    return allowed


def leave_waiting(c: Composition, *, ask: bool, delay_s: float = 0.0) -> None:
    """The job's last act: the requeue (`ask`; else Slurm has requeued it itself), then what Slurm is told about the job that waits."""
    if c.client is None:
        return
    job_id = c.allocation.job_id
    if ask and not requeue(c.client, job_id, c.clock, lambda: c.signals.count(TERM), c.say):
        return
    slurm, plan = c.setup.job.slurm, c.setup.plan
    wish = Wish(
        avoid=tuple(read_excluded(c.run.exclude_json, c.clock.time())),
        keep=tuple(expand(slurm.exclude or "")),
        known=_ever_excluded(c),
        delay_s=delay_s,
        nodes=plan.nodes + plan.spares,
        free_choice=not (slurm.nodelist or slurm.constraint or slurm.reservation),
    )
    arrange(c.client, job_id, wish, restarts=c.allocation.restart_count, clock=c.clock, say=c.say)


def _ever_excluded(c: Composition) -> tuple[str, ...]:
    try:
        return tuple(json.loads(c.run.exclude_json.read_bytes())["nodes"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()
