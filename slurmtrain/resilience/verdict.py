"""After a node fell silent: is it gone, or was it a fault? Slurm's word decides, and takes up to SlurmdTimeout.

The batch script must not end before Slurm has decided: it would be FAILED, and nobody would start it again. A job without
`--no-kill` is requeued by Slurm itself; the TERM of that requeue ends this wait at once. A node that answers a step of its own is
healthy, and nobody waits.
"""

from __future__ import annotations

from contextlib import suppress

from slurmtrain.atomic import Disk
from slurmtrain.clock import Clock
from slurmtrain.errors import EXIT_TEMPFAIL, LaunchError
from slurmtrain.resilience.allocation import Allocation
from slurmtrain.resilience.classify import Verdict
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.ranks import check_spec
from slurmtrain.resilience.records import AttemptRecord, Outcome, close_attempt
from slurmtrain.resilience.signals import TERM, Signals
from slurmtrain.rundir import RunDir
from slurmtrain.steps.launcher import StepLauncher, StepSpec

SLURMD_TIMEOUT_DEFAULT_S = 300.0
MARGIN_S = 90.0
"""After SlurmdTimeout: slurmctld looks at its nodes in rounds, and TERM takes its way."""
PROBE_S = 20.0
_POLL_S = 1.0
_ASK_S = 10.0


def slurms_word(c: Composition, record: AttemptRecord, verdict: Verdict) -> frozenset[str]:
    """Which nodes are gone. Writes how things stand first: Slurm may end this process at any moment."""
    gone = verdict.suspects or (verdict.node,)
    c.say(f"{verdict.cause}; waiting for Slurm's word on {' '.join(gone)}")
    with suppress(OSError):
        outcome = Outcome("node_failure", verdict.cause, node=verdict.node, step=verdict.step, t_end=c.clock.time())
        close_attempt(c.run, c.disk, record, outcome)
        write_exit_code(c.run, c.disk, EXIT_TEMPFAIL)
    known = c.allocation.down(gone)
    if not known:
        spec = check_spec(c.setup, record.attempt, gone, c.allocation.step_job_id, c.environ)
        if probe(c.launcher, spec, c.clock, c.signals) and not taken_back(c.allocation, c.signals):
            c.say(f"{' '.join(gone)} answers: not a node failure")
            return frozenset()
    return await_word(gone, c.allocation, c.clock, c.signals)


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
