"""One start of the world: choose nodes, check them, start the ranks, watch, and judge the end from what was left."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from slurmtrain.config.plan import Plan
from slurmtrain.errors import SlurmtrainError
from slurmtrain.resilience.agentwire import Order
from slurmtrain.resilience.calls import called_away, stopped_by, time_is_up
from slurmtrain.resilience.classify import Verdict, classify
from slurmtrain.resilience.cleaning import clean
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.decide import Limits
from slurmtrain.resilience.examination import culprit
from slurmtrain.resilience.guard import make_guard
from slurmtrain.resilience.judgement import category, durable_step, evidence_of, heard, hindered, judge_end
from slurmtrain.resilience.nodes import Learnt
from slurmtrain.resilience.ranks import rank_spec
from slurmtrain.resilience.records import AttemptRecord, Outcome, Owner, close_attempt, differences, read_attempts, write_attempt
from slurmtrain.resilience.selection import begin, check
from slurmtrain.resilience.signals import NOTICE
from slurmtrain.resilience.watch import Watch, Watched

KILL_WAIT_DEFAULT_S = 30.0


@dataclass(frozen=True)
class Ended:
    """The attempt's record (None: it never had nodes), how it ended, and whether the stop was the supervisor's or USR2's will.

    `lost`: nodes that were found to be gone.
    """

    record: AttemptRecord | None
    outcome: Outcome
    own_will: bool = False
    lost: tuple[str, ...] = ()


def make_attempt(c: Composition, owner: Owner, learnt: Learnt) -> Ended:
    """Run attempt `owner.attempt` to its end. Raises nothing of slurmtrain's own: what hinders the start is the outcome."""
    record: AttemptRecord | None = None
    try:
        record = begin(c, owner, learnt)
        again, learnt.attempts, learnt.world = learnt.attempts > 0, learnt.attempts + 1, record.nodes
        if learnt.left:
            clean(c, learnt.left, record.nodes)
            learnt.left = 0
        if called_away(c, again=again):
            return _called(c, record, stopped_by(c, "stopped before the nodes were checked"))
        checked = check(c, record, learnt)
        if isinstance(checked, Verdict):
            return _called(c, record, checked)
        record = checked[0]
        learnt.world = record.nodes
        return _go(c, record, checked[1])
    except (SlurmtrainError, OSError) as error:
        return Ended(record, outcome_of(c, hindered(error)))


def _called(c: Composition, record: AttemptRecord, verdict: Verdict) -> Ended:
    """An attempt whose ranks were never started."""
    return Ended(record, outcome_of(c, verdict), own_will=c.signals.count(NOTICE) > 0 or (verdict.kind == "requeue" and time_is_up(c)))


def _go(c: Composition, checked: AttemptRecord, plan: Plan) -> Ended:
    for change in differences(_before(c, checked), checked):
        c.say(f"changed since the attempt before: {change}")
    watch = _watch(c, checked, plan)
    watch.learn()
    c.agents.send(Order("watch", next(c.numbers), checked.attempt, ranks=_ranks(checked)))
    record = replace(checked, t_ranks=c.clock.time())
    write_attempt(c.run, c.disk, record)
    setup = replace(c.setup, plan=plan)
    step = c.launcher.start(rank_spec(setup, record.attempt, record.nodes, c.allocation.step_job_id, c.environ, command=c.command))

    def note(so_far: Watched) -> None:
        with suppress(OSError):
            evidence = evidence_of(c, record, so_far, watch.tracker, step)
            verdict = classify(evidence)
            close_attempt(c.run, c.disk, record, outcome_of(c, replace(verdict, category=category(c, verdict, evidence)), so_far))

    watched = watch.until_over(step, note)
    verdict = judge_end(c, record, evidence_of(c, record, watched, watch.tracker, step))
    lost = verdict.suspects if verdict.kind == "node_failure" else ()
    return Ended(record, outcome_of(c, replace(verdict, step=verdict.step or watch.tracker.last_step), watched), watched.own_will, lost)


def _ranks(record: AttemptRecord) -> dict[str, tuple[int, ...]]:
    """Each node's world ranks."""
    count = record.tasks_per_node
    return {node: tuple(range(index * count, (index + 1) * count)) for index, node in enumerate(record.nodes)}


def _before(c: Composition, record: AttemptRecord) -> AttemptRecord | None:
    """The newest earlier attempt whose versions are known."""
    return next((r for r in reversed(read_attempts(c.run)) if r.attempt < record.attempt and r.packages), None)


def _watch(c: Composition, record: AttemptRecord, plan: Plan) -> Watch:
    times, job = c.setup.site.timeouts, c.setup.job
    limits = Limits(
        start_s=times.start_timeout_s,
        grace_s=times.exit_grace_s,
        stop_s=times.collective_timeout_s + times.start_timeout_s,
        kill_wait_s=c.allocation.setting("KillWait", KILL_WAIT_DEFAULT_S),
        one_by_one=job.entry is not None,
    )
    return Watch(
        c.run,
        c.run.attempt(record.attempt),
        record.world,
        limits,
        clock=c.clock,
        disk=c.disk,
        allocation=c.allocation,
        signals=c.signals,
        say=c.say,
        steps=job.steps or 0,
        tokens_per_step=job.tokens_per_step,
        guard=make_guard(c, record, plan),
    )


def outcome_of(c: Composition, verdict: Verdict, watched: Watched | None = None) -> Outcome:
    """The verdict as it is recorded, now. Of a silent corruption the node is to blame that an examination found, and no other."""
    cause = category(c, verdict)
    return Outcome(
        kind=verdict.kind,
        cause=verdict.cause,
        rank=verdict.rank,
        node=verdict.node if cause != "silent_corruption" else culprit(c.run.examination_json),
        step=verdict.step,
        last_durable_step=durable_step(c),
        t_end=c.clock.time(),
        signal=heard(c),
        category=cause,
        fault_t=watched.fault_t if watched is not None else None,
        seen_t=watched.seen_t if watched is not None else None,
    )
