"""After a node fell silent: is it gone, or was it a fault?

| the job | who decides |
|---|---|
| outlives its nodes (--no-kill) | whatever comes first of the following |
| | healthy: the node's agent speaks, or a step of its own is answered |
| | gone: its agent is silent while others speak, Slurm calls it down, the step fails, or nothing comes for `PROBE_S` |
| does not | Slurm, in up to SlurmdTimeout; a node whose agent speaks, or that answers a step of its own, is healthy, and nobody waits |

Of a job that Slurm will take back the batch script must not end before: it would be FAILED, and nobody would start it again. Such a job
is requeued by Slurm itself; the TERM of that requeue ends the wait at once.
"""

from __future__ import annotations

from contextlib import suppress

from slurmtrain.atomic import Disk
from slurmtrain.clock import Clock
from slurmtrain.errors import EXIT_TEMPFAIL, LaunchError
from slurmtrain.resilience.allocation import Allocation
from slurmtrain.resilience.classify import Verdict
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.nodes import silent_nodes
from slurmtrain.resilience.ranks import check_spec
from slurmtrain.resilience.records import AttemptRecord, Outcome, close_attempt
from slurmtrain.resilience.signals import TERM, Signals
from slurmtrain.rundir import RunDir
from slurmtrain.steps.launcher import Step, StepLauncher, StepSpec

SLURMD_TIMEOUT_DEFAULT_S = 300.0
MARGIN_S = 90.0
"""After SlurmdTimeout: slurmctld looks at its nodes in rounds, and TERM takes its way."""
PROBE_S = 20.0
LOST_S = 6.0
"""Twice what an agent with nothing to tell waits: of a node whose ranks are silent, too, it is enough."""
_POLL_S, _LOOK_S = 1.0, 0.2
_ASK_S = 10.0


def gone_nodes(c: Composition, record: AttemptRecord, verdict: Verdict) -> frozenset[str]:
    """Which of the verdict's nodes are gone, by the table above."""
    suspects = verdict.suspects or (verdict.node,)
    return sound_out(c, record, suspects) if c.outlives_nodes else slurms_word(c, record, verdict, suspects)


def sound_out(c: Composition, record: AttemptRecord, suspects: tuple[str, ...]) -> frozenset[str]:
    """Ask each node by a step of its own, its agent, and Slurm, until each is found gone or healthy."""
    began = c.clock.monotonic()
    steps = {node: _probe_of(c, record, node) for node in suspects}
    gone = set(c.allocation.down(suspects) or ())
    unknown = set(suspects) - gone
    while unknown and c.clock.monotonic() - began < PROBE_S and not c.signals.count(TERM):
        heard = c.agents.heard() if c.agents.watched() else {}
        silent = silent_nodes(heard, c.clock.monotonic(), limit_s=LOST_S)
        for node in sorted(unknown):
            step = steps[node]
            code = step.poll() if step is not None else -1
            healthy = code == 0 or (node in heard and heard[node].at > began)
            lost = not healthy and (code is not None or node in silent)
            gone |= {node} if lost else set()
            unknown -= {node} if lost or healthy else set()
        c.clock.sleep(_LOOK_S if unknown else 0.0)
    for step in steps.values():
        if step is not None and step.poll() is None:
            step.abandon()
    return frozenset(gone | unknown)


def _probe_of(c: Composition, record: AttemptRecord, node: str) -> Step | None:
    try:
        return c.launcher.start(check_spec(c.setup, record.attempt, (node,), c.allocation.step_job_id, c.environ, bare=True))
    except LaunchError:
        return None


def slurms_word(c: Composition, record: AttemptRecord, verdict: Verdict, gone: tuple[str, ...]) -> frozenset[str]:
    """Which nodes Slurm calls gone. Writes how things stand first: Slurm may end this process at any moment."""
    c.say(f"{verdict.cause}; waiting for Slurm's word on {' '.join(gone)}")
    with suppress(OSError):
        outcome = Outcome("node_failure", verdict.cause, node=verdict.node, step=verdict.step, t_end=c.clock.time())
        close_attempt(c.run, c.disk, record, outcome)
        write_exit_code(c.run, c.disk, EXIT_TEMPFAIL)
    known = c.allocation.down(gone)
    if not known:
        if _speak(c, gone):
            c.say(f"the agents of {' '.join(gone)} speak: not a node failure")
            return frozenset()
        spec = check_spec(c.setup, record.attempt, gone, c.allocation.step_job_id, c.environ, bare=True)
        if probe(c.launcher, spec, c.clock, c.signals) and not taken_back(c.allocation, c.signals):
            c.say(f"{' '.join(gone)} answers: not a node failure")
            return frozenset()
    return await_word(gone, c.allocation, c.clock, c.signals)


def _speak(c: Composition, nodes: tuple[str, ...]) -> bool:
    """Whether the agents of all these nodes say something from now on. A step needs files for its output: on a full disk none answers."""
    began = c.clock.monotonic()
    while c.agents.watched() and c.clock.monotonic() - began < LOST_S and not c.signals.count(TERM):
        heard = c.agents.heard()
        if all(node in heard and heard[node].at > began for node in nodes):
            return True
        c.clock.sleep(_LOOK_S)
    return False


def write_exit_code(run: RunDir, disk: Disk, code: int) -> None:
    """What the batch script ends with. Raises OSError."""
    disk.write(run.exit_code, f"{code}\n".encode())


def taken_back(allocation: Allocation, signals: Signals) -> bool:
    """Whether Slurm has ended this start of the job, or is about to."""
    if signals.count(TERM):
        return True
    job = allocation.look(fresh=True).job
    return job is not None and job.state != "RUNNING"


def probe(launcher: StepLauncher, spec: StepSpec, clock: Clock, signals: Signals, *, limit_s: float = PROBE_S) -> bool:
    """Whether a task on each of the step's nodes runs and ends well within the limit."""
    try:
        step = launcher.start(spec)
    except LaunchError:
        return False
    limit = clock.monotonic() + limit_s
    while step.poll() is None and clock.monotonic() < limit and not signals.count(TERM):
        clock.sleep(_POLL_S)
    if step.poll() is None:
        step.end(0.0)
        return False
    return step.poll() == 0


def await_word(suspects: tuple[str, ...], allocation: Allocation, clock: Clock, signals: Signals) -> frozenset[str]:
    """Which of the suspects are gone: waits until Slurm takes the job back (then: all of them) or its time for deciding is over."""
    limit = clock.monotonic() + allocation.setting("SlurmdTimeout", SLURMD_TIMEOUT_DEFAULT_S) + MARGIN_S
    down: frozenset[str] = frozenset()
    asked_at = float("-inf")
    while clock.monotonic() < limit:
        if signals.count(TERM):
            return frozenset(suspects)
        if clock.monotonic() - asked_at >= _ASK_S:
            asked_at = clock.monotonic()
            if taken_back(allocation, signals):
                return frozenset(suspects)
            down = allocation.down(suspects) or down
        clock.sleep(_POLL_S)
    return down
