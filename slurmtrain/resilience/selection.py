"""The nodes of an attempt: which are there and may be used, which pass their check, and the layout on them (attempt.json, plan.json)."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurmtrain import __version__
from slurmtrain.atomic import to_json
from slurmtrain.config.plan import Plan
from slurmtrain.errors import LaunchError, one_line
from slurmtrain.fabric.resize import fewest, resize
from slurmtrain.fabric.topology import in_segments, segment_nodes
from slurmtrain.preflight.asking import Check, CheckResult, Wanted, write_nonce
from slurmtrain.preflight.history import Level
from slurmtrain.preflight.judge import Expected, NodeFault
from slurmtrain.preflight.report import findings_of
from slurmtrain.preflight.request import Request
from slurmtrain.resilience.allocation import Grant
from slurmtrain.resilience.calls import called_away, stopped_by
from slurmtrain.resilience.classify import Verdict
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.examination import placed, read_examination
from slurmtrain.resilience.exclude import Blame, avoid, read_exclusions, unfit
from slurmtrain.resilience.measuring import measured
from slurmtrain.resilience.needs import with_needs
from slurmtrain.resilience.nodes import Learnt, Standing, silent_nodes, stand, stepped_in
from slurmtrain.resilience.placement import Chosen, check_grant, choose, expected_memory
from slurmtrain.resilience.ranks import check_spec
from slurmtrain.resilience.records import AttemptRecord, Owner, read_attempts, write_attempt
from slurmtrain.resilience.remembering import remember
from slurmtrain.slurm.hostlist import fold
from slurmtrain.units import counted

_SHOWN_FAULTS = 3


def standing(c: Composition, learnt: Learnt, grant: Grant) -> Standing:
    """How the nodes of the allocation stand now."""
    silent = silent_nodes(c.agents.heard(), c.clock.monotonic()) if c.agents.watched() else {}
    this = (c.allocation.job_id, c.allocation.restart_count)
    return stand(
        grant.nodes,
        bad=learnt.bad,
        silent=silent,
        excluded=read_exclusions(c.run.exclude_json, c.clock.time()),
        here={r.attempt for r in read_attempts(c.run) if (r.job_id, r.restart_count) == this},
        last_resort=c.foreground or not c.allocation.job_id,
    )


def least_nodes(c: Composition) -> int:
    """The fewest nodes that the world can do with."""
    return fewest(c.setup.plan, c.setup.job, c.setup.site)


def begin(c: Composition, owner: Owner, learnt: Learnt) -> AttemptRecord:
    """Take stock of the allocation and publish attempt.json with the nodes that are meant to be used.

    Raises LaunchError and PlacementError where they cannot do, SlurmError, OSError.
    """
    grant = c.allocation.look(fresh=learnt.attempts > 0)
    learnt.granted = True
    check_grant(grant.job, c.setup.plan, c.setup.site)
    try:
        c.agents.start([node for node in grant.nodes if node not in learnt.bad])
    except LaunchError as error:
        c.say(f"nobody watches the nodes: {error}")
    there = standing(c, learnt, grant)
    plan = layout(c, there.usable)
    chosen, _ = _examined(c, choose(plan, there.usable, c.allocation.places(grant.nodes), there.avoided), there.avoided)
    record = AttemptRecord(
        attempt=owner.attempt,
        job_id=c.allocation.job_id,
        restart_count=c.allocation.restart_count,
        t_start=c.clock.time(),
        nodes=chosen.nodes,
        spares=chosen.spares,
        tasks_per_node=plan.tasks_per_node,
        world=plan.world,
        python=platform.python_version(),
        slurmtrain=__version__,
        passed_over=_passed_over(chosen, there.out, there.avoided),
    )
    write_attempt(c.run, c.disk, record)
    _announce(c, record, chosen, there.avoided, before=learnt.world)
    return record


def layout(c: Composition, nodes: Sequence[str]) -> Plan:
    """The layout on these nodes: the run's, or an elastic run's smaller one."""
    plan, job = c.setup.plan, c.setup.job
    if not job.recovery.elastic:
        return plan
    room = in_segments(nodes, c.allocation.places(nodes), segment_nodes(plan))
    return resize(plan, job, c.setup.site, room) or plan


def check(c: Composition, record: AttemptRecord, learnt: Learnt) -> tuple[AttemptRecord, Plan] | Verdict:
    """Check all nodes that may be used: the record with those that are, what they are like, and the layout; or why there is no start.

    Raises LaunchError, PlacementError, OSError.
    """
    there = standing(c, learnt, c.allocation.look())
    request = _request(c, record)
    result = _check_nodes(c, record, there, learnt, request)
    made = measured(c, record.attempt, request, result, there.usable, again=learnt.attempts > 1)
    result = made.result
    if result.interrupted:
        return stopped_by(c, "stopped before the ranks were started")
    fit = result.fit(there.usable)
    if c.setup.job.preflight != "off":
        level: Level = "full" if made.measured else "quick"
        remember(c, there.usable, findings_of(result), level=level, seconds=result.seconds, figures=made.full.figures)
    _learn(c, record, learnt, result, passed=len(fit))
    if len(fit) < least_nodes(c):
        return _too_few(result)
    places, avoided = c.allocation.places(fit), {n: why for n, why in there.avoided.items() if n in fit}
    plan = layout(c, fit)
    chosen, examined = _examined(c, choose(plan, fit, places, avoided), avoided)
    if examined:
        c.say(examined)
    c.say(f"{counted(len(fit), 'node')} checked in {result.seconds:.1f} s")
    first = result.answers[chosen.nodes[0]]
    complete = replace(
        record,
        nodes=chosen.nodes,
        spares=chosen.spares,
        world=plan.world,
        python=first.python,
        packages=dict(first.packages),
        passed_over=_passed_over(chosen, {**there.out, **result.problems(), **result.late}, there.avoided),
        t_checked=c.clock.time(),
    )
    if complete.nodes != record.nodes:
        _announce(c, complete, chosen, avoided, before=record.nodes)
    write_attempt(c.run, c.disk, complete)
    if plan != c.setup.plan:
        own = to_json(plan.model_dump(mode="json", exclude_none=True))
        c.disk.write(c.run.attempt(record.attempt).plan_json, own)
        c.say(f"smaller than planned: {plan.nodes} of {c.setup.plan.nodes} nodes, dp {plan.dp}, {plan.microbatches} micro-batches a rank")
    return complete, plan


def _examined(c: Composition, chosen: Chosen, avoided: Mapping[str, str]) -> tuple[Chosen, str]:
    """The nodes in the order that the examination of a silent corruption wants, where one is open; and a line about it."""
    able = [node for node in chosen.spares if node not in avoided]
    nodes, spares, words = placed(read_examination(c.run.examination_json), chosen.nodes, able)
    return replace(chosen, nodes=nodes, spares=(*spares, *(node for node in chosen.spares if node in avoided))), words


def avoid_nodes(c: Composition, blames: Sequence[Blame], attempt: int) -> None:
    """Have nodes avoided from now on, and say so."""
    if not blames:
        return
    hours = c.setup.job.recovery.exclude_hours
    for one in blames:
        c.say(f"node {one.node} is avoided for {hours:g} h: {one.reason}{f' ({one.evidence})' if one.evidence else ''}")
    try:
        avoid(c.run.exclude_json, c.disk, blames, attempt=attempt, now=c.clock.time(), hours=hours)
    except (OSError, ValueError) as error:
        c.say(f"cannot write {c.run.exclude_json}: {one_line(str(error))}: nodes are avoided in this start of the job alone")


def _check_nodes(c: Composition, record: AttemptRecord, there: Standing, learnt: Learnt, request: Request) -> CheckResult:
    attempt, setup = c.run.attempt(record.attempt), c.setup
    in_slurm = bool(c.allocation.job_id)
    c.disk.write(attempt.request, request.to_json())
    expected = Expected(
        nodes=there.usable,
        nonce=request.nonce,
        version=__version__,
        cpus=setup.site.node.cpus_per_gpu * setup.plan.gpus_per_node if in_slurm else 0,
        memory_bytes=expected_memory(setup.plan, setup.site) if in_slurm else 0,
        ulimits=setup.site.environment.ulimits,
        request=request,
    )
    return Check(
        c.launcher,
        lambda nodes: check_spec(setup, record.attempt, nodes, c.allocation.step_job_id, c.environ),
        expected,
        Wanted(setup.plan.nodes, least_nodes(c), setup.site.timeouts.node_check_timeout_s),
        answers=attempt.nodes_dir,
        logs=attempt.path,
        clock=c.clock,
        doubted=learnt.doubted & set(there.usable),
        interrupted=lambda: called_away(c, again=learnt.attempts > 1),
    ).run()


def _request(c: Composition, record: AttemptRecord) -> Request:
    """What the nodes are asked before this attempt. Raises OSError."""
    attempt, setup = c.run.attempt(record.attempt), c.setup
    request = Request(
        t=c.clock.time(),
        answers=str(attempt.nodes_dir),
        nonce=write_nonce(attempt.nonce, c.disk),
        nonce_file=str(attempt.nonce),
        shared=(str(c.run.checkpoints), str(c.run.events)),
        site=setup.site,
        code=str(c.run.code),
        python=setup.python,
        gpus_per_node=setup.plan.gpus_per_node,
        health=setup.job.preflight != "off",
    )
    return with_needs(request, setup)


def _learn(c: Composition, record: AttemptRecord, learnt: Learnt, result: CheckResult, *, passed: int) -> None:
    """Nodes that failed are bad where others did not; where most did, and of nodes that were only late, the next check decides."""
    problems = result.problems()
    blames = unfit(problems, passed)
    avoid_nodes(c, blames, record.attempt)
    learnt.bad.update({one.node: f"{one.reason}: {one.evidence}" for one in blames})
    learnt.doubted = set(result.late) | set(problems)
    for node, why in result.late.items():
        c.say(f"node {node} is passed over: {why}")
    for one in result.findings:
        if one.grade == "warn":
            c.say(f"node {one.node}: {one}")


def _too_few(result: CheckResult) -> Verdict:
    faults = [*result.faults, *(NodeFault(node, why) for node, why in result.late.items())]
    more = f" (and more: {fold(fault.node for fault in faults)})" if len(faults) > _SHOWN_FAULTS else ""
    words = "; ".join(str(fault) for fault in faults[:_SHOWN_FAULTS])
    return Verdict("launch", one_line(f"check of the nodes: {words}{more}", 600), node=faults[0].node if faults else "")


def _passed_over(chosen: Chosen, out: Mapping[str, str], avoided: Mapping[str, str]) -> dict[str, str]:
    return {**out, **{node: why for node, why in avoided.items() if node not in chosen.nodes}}


def _announce(c: Composition, record: AttemptRecord, chosen: Chosen, avoided: Mapping[str, str], *, before: Sequence[str]) -> None:
    job = f"job {record.job_id} (restart {record.restart_count}), " if record.job_id else ""
    spares = f", spares {fold(record.spares)}" if record.spares else ""
    c.say(f"attempt {record.attempt} of {c.run.name}: {job}nodes {fold(record.nodes)}{spares}, {record.world} ranks")
    came, left = stepped_in(before, record.nodes)
    if before and came:
        c.say(f"{fold(came)} in for {fold(left)}" if left else f"{fold(came)} joined")
    for node in chosen.avoided_in_vain:
        c.say(f"node {node} is used although it is to be avoided ({avoided[node]}): there are not enough others")
