"""One start of the world: choose nodes, check them, start the ranks, watch, and judge the end from what was left."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import dataclass, replace

from slurmtrain import __version__
from slurmtrain.errors import SlurmtrainError, one_line
from slurmtrain.preflight.judge import Expected
from slurmtrain.resilience.classify import Verdict, classify
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.decide import Limits
from slurmtrain.resilience.judgement import category, durable_step, evidence_of, heard, hindered, judge_end
from slurmtrain.resilience.nodecheck import check_nodes, write_nonce
from slurmtrain.resilience.placement import Chosen, check_grant, choose, expected_memory, read_excluded
from slurmtrain.resilience.ranks import check_spec, rank_spec
from slurmtrain.resilience.records import AttemptRecord, Outcome, Owner, close_attempt, differences, read_attempts, write_attempt
from slurmtrain.resilience.signals import INTERRUPT, NOTICE
from slurmtrain.resilience.watch import Watch, Watched
from slurmtrain.slurm.hostlist import fold
from slurmtrain.units import counted

KILL_WAIT_DEFAULT_S = 30.0
_SHOWN_FAULTS = 3


@dataclass(frozen=True)
class Ended:
    """The attempt's record (None: it never had nodes), how it ended, and whether the stop was the supervisor's or USR2's will."""

    record: AttemptRecord | None
    outcome: Outcome
    own_will: bool = False


def make_attempt(c: Composition, owner: Owner) -> Ended:
    """Run attempt `owner.attempt` to its end. Raises nothing of slurmtrain's own: what hinders the start is the outcome."""
    try:
        record = _begin(c, owner)
    except (SlurmtrainError, OSError) as error:
        return Ended(None, _outcome(c, hindered(error)))
    try:
        return _go(c, record)
    except (SlurmtrainError, OSError) as error:
        return Ended(record, _outcome(c, hindered(error)))


def _begin(c: Composition, owner: Owner) -> AttemptRecord:
    """Choose nodes and publish attempt.json."""
    grant = c.allocation.look()
    check_grant(grant.job, c.setup.plan, c.setup.site)
    excluded = read_excluded(c.run.exclude_json, c.clock.time())
    chosen = choose(c.setup.plan, grant.nodes, c.allocation.places(grant.nodes), excluded)
    record = AttemptRecord(
        attempt=owner.attempt,
        job_id=c.allocation.job_id,
        restart_count=c.allocation.restart_count,
        t_start=c.clock.time(),
        nodes=chosen.nodes,
        spares=chosen.spares,
        tasks_per_node=c.setup.plan.gpus_per_node,
        world=c.setup.plan.world,
        python=platform.python_version(),
        slurmtrain=__version__,
    )
    write_attempt(c.run, c.disk, record)
    _announce(c, record, chosen, excluded)
    return record


def _announce(c: Composition, record: AttemptRecord, chosen: Chosen, excluded: dict[str, str]) -> None:
    job = f"job {record.job_id} (restart {record.restart_count}), " if record.job_id else ""
    spares = f", spares {fold(record.spares)}" if record.spares else ""
    c.say(f"attempt {record.attempt} of {c.run.name}: {job}nodes {fold(record.nodes)}{spares}, {record.world} ranks")
    for node in chosen.avoided_in_vain:
        c.say(f"node {node} is used although it is to be avoided ({excluded[node]}): there are not enough others")


def _go(c: Composition, begun: AttemptRecord) -> Ended:
    checked = _check(c, begun)
    if isinstance(checked, Verdict):
        return Ended(begun, _outcome(c, checked), own_will=c.signals.count(NOTICE) > 0)
    record = checked
    for change in differences(_before(c, record), record):
        c.say(f"changed since the attempt before: {change}")
    watch = _watch(c, record)
    watch.learn()
    step = c.launcher.start(rank_spec(c.setup, record.attempt, record.nodes, c.allocation.step_job_id, c.environ, command=c.command))

    def note(so_far: Watched) -> None:
        with suppress(OSError):
            close_attempt(c.run, c.disk, record, _outcome(c, classify(evidence_of(c, record, so_far, watch.tracker, step))))

    watched = watch.until_over(step, note)
    verdict = judge_end(c, record, evidence_of(c, record, watched, watch.tracker, step))
    return Ended(record, _outcome(c, replace(verdict, step=verdict.step or watch.tracker.last_step)), watched.own_will)


def _before(c: Composition, record: AttemptRecord) -> AttemptRecord | None:
    """The newest earlier attempt whose versions are known."""
    return next((r for r in reversed(read_attempts(c.run)) if r.attempt < record.attempt and r.packages), None)


def _check(c: Composition, record: AttemptRecord) -> AttemptRecord | Verdict:
    """The nodes' check: the record with the versions that the nodes found, or why there is no start."""
    attempt, setup = c.run.attempt(record.attempt), c.setup
    in_slurm = bool(c.allocation.job_id)
    expected = Expected(
        nodes=record.nodes,
        nonce=write_nonce(attempt, c.disk),
        version=__version__,
        cpus=setup.site.node.cpus_per_gpu * setup.plan.gpus_per_node if in_slurm else 0,
        memory_bytes=expected_memory(setup.plan, setup.site) if in_slurm else 0,
        ulimits=setup.site.environment.ulimits,
    )
    result = check_nodes(
        c.launcher,
        check_spec(setup, record.attempt, record.nodes, c.allocation.step_job_id, c.environ),
        attempt,
        expected,
        clock=c.clock,
        timeout_s=setup.site.timeouts.node_check_timeout_s,
        interrupted=lambda: c.signals.any or c.run.stop.exists(),
    )
    if result.interrupted:
        by_person = c.run.stop.exists() or c.signals.count(INTERRUPT) > 0
        return Verdict("stopped" if by_person else "requeue", "stopped before the ranks were started")
    if result.faults:
        unfit = fold(fault.node for fault in result.faults)
        more = f" (and more: {unfit})" if len(result.faults) > _SHOWN_FAULTS else ""
        words = "; ".join(str(fault) for fault in result.faults[:_SHOWN_FAULTS])
        return Verdict("launch", one_line(f"check of the nodes: {words}{more}", 600), node=result.faults[0].node)
    c.say(f"{counted(len(record.nodes), 'node')} checked in {result.seconds:.1f} s")
    first = result.answers[record.nodes[0]]
    complete = replace(record, python=first.python, packages=dict(first.packages))
    write_attempt(c.run, c.disk, complete)
    return complete


def _watch(c: Composition, record: AttemptRecord) -> Watch:
    times, training = c.setup.site.timeouts, c.setup.job.training
    limits = Limits(
        start_s=times.start_timeout_s,
        grace_s=times.exit_grace_s,
        stop_s=times.collective_timeout_s + times.start_timeout_s,
        kill_wait_s=c.allocation.setting("KillWait", KILL_WAIT_DEFAULT_S),
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
        steps=training.steps,
        tokens_per_step=training.global_batch * training.sequence_length,
    )


def _outcome(c: Composition, verdict: Verdict) -> Outcome:
    return Outcome(
        kind=verdict.kind,
        cause=verdict.cause,
        rank=verdict.rank,
        node=verdict.node,
        step=verdict.step,
        last_durable_step=durable_step(c),
        t_end=c.clock.time(),
        signal=heard(c),
        category=category(c, verdict),
    )
