"""The supervisor: one process per allocation. Gates, ownership, one attempt, and the end: everything is written, then the requeue.

The order of the end is fixed: outcome, FINISHED, history, owner, exit code, the line that tells, and `scontrol requeue` once and last,
because it kills its caller.
"""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from slurmtrain.atomic import to_json
from slurmtrain.clock import SystemClock
from slurmtrain.errors import EXIT_NO_RESTART, EXIT_OK, OwnershipError, SlurmError, SlurmUnavailableError
from slurmtrain.resilience.attempt import Ended, make_attempt
from slurmtrain.resilience.composition import Composition, compose
from slurmtrain.resilience.ending import End, Scene, decide_end, stuck_attempts
from slurmtrain.resilience.owner import claim, release
from slurmtrain.resilience.records import Owner, close_attempt, read_attempts, read_owner
from slurmtrain.resilience.signals import INTERRUPT, NOTICE, TERM, Signals
from slurmtrain.resilience.verdict import write_exit_code
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.history import add_act

REQUEUE_RETRY_S = 5.0
REQUEUE_LIMIT_S = 60.0
AFTER_REQUEUE_S = 1.0
"""What the TERM of a requeue may take to arrive."""
_ACT = {"finished": "finish", "stopped": "stopped", "requeue": "stopped for requeue"}


@dataclass(frozen=True)
class Summary:
    """What a supervisor leaves to its caller: submitit's result, and the exit code."""

    run: str
    code: int
    outcome: str
    cause: str
    attempt: int | None = None
    job_id: str = ""
    step: int | None = None
    last_durable_step: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"v": 1, **self.__dict__}


def supervise(run: RunDir, environ: Mapping[str, str], *, foreground: bool = False, command: tuple[str, ...] | None = None) -> Summary:
    """Run one job's share of a run with the real doors.

    `foreground`: under a person's eyes (`slurmtrain run`): Ctrl-C stops at a checkpoint, a second one at once; never a requeue.
    Raises ConfigError and LaunchError for a run folder or a place in which nothing can be started.
    """
    clock = SystemClock()
    signals = Signals(clock.monotonic)
    with ExitStack() as stack:
        if foreground:
            stack.enter_context(signals.listening((NOTICE, TERM, INTERRUPT)))
            stack.enter_context(signals.listening_as(TERM, (signal.SIGHUP,)))
        else:
            # For good: whoever called (submitit) had handlers of its own, which must not hear a signal that comes late.
            signals.listen((NOTICE, TERM))
            signal.signal(signal.SIGCONT, signal.SIG_DFL)
        return supervise_with(compose(run, environ, clock=clock, signals=signals, foreground=foreground, command=command))


def supervise_with(c: Composition) -> Summary:
    """The same with given doors."""
    c.run.exit_code.unlink(missing_ok=True)
    gated = _gate(c)
    if gated is not None:
        return gated
    me = Owner(c.allocation.job_id, c.allocation.restart_count, 0, platform.node(), os.getpid(), c.clock.time())
    try:
        owner = claim(c.run, me, disk=c.disk, clock=c.clock, client=c.client, interrupted=lambda: c.signals.any)
    except OwnershipError as error:
        return _early(c, EXIT_NO_RESTART, "refused", str(error))
    _act(c, "start", f"attempt {owner.attempt}")
    return _finish(c, owner, make_attempt(c, owner))


def _gate(c: Composition) -> Summary | None:
    if c.run.finished.exists():
        return _early(c, EXIT_OK, "finished", "the run is complete (FINISHED): nothing to do")
    if c.run.stop.exists():
        return _early(c, EXIT_OK, "stopped", "STOP stands in the run folder: nothing to do; `slurmtrain submit --resume` takes it away")
    return None


def _early(c: Composition, code: int, outcome: str, cause: str) -> Summary:
    c.say(cause)
    _try(c, "submit/exit_code", lambda: write_exit_code(c.run, c.disk, code))
    return Summary(str(c.run.path), code, outcome, cause, job_id=c.allocation.job_id)


def _finish(c: Composition, owner: Owner, ended: Ended) -> Summary:
    outcome, record = ended.outcome, ended.record
    if record is not None:
        _try(c, "attempt.json", lambda: close_attempt(c.run, c.disk, record, outcome))
    end = decide_end(_scene(c, ended)) if _still_mine(c, owner) else End(EXIT_NO_RESTART, why="another attempt owns this run now")
    if outcome.kind == "finished":
        _try(c, "FINISHED", lambda: c.disk.write(c.run.finished, to_json({"v": 1, "step": outcome.step, "t": c.clock.time()})))
    c.say(f"attempt {owner.attempt} {outcome.kind}: {outcome.cause}")
    c.say(f"last durable step: {outcome.last_durable_step if outcome.last_durable_step is not None else 'none'}; {end.why}")
    if c.signals.count(INTERRUPT) > 1:
        _act(c, "cancel", "Ctrl-C twice")
    _act(c, "requeue" if end.requeue else _ACT.get(outcome.kind, "fail"), f"attempt {owner.attempt}: {outcome.cause}")
    _try(c, "owner.json", lambda: release(c.run, owner, c.disk))
    _try(c, "submit/exit_code", lambda: write_exit_code(c.run, c.disk, end.code))
    if end.requeue:
        _requeue(c)
    return Summary(
        str(c.run.path), end.code, outcome.kind, outcome.cause, owner.attempt, owner.job_id, outcome.step, outcome.last_durable_step
    )


def _still_mine(c: Composition, owner: Owner) -> bool:
    now = read_owner(c.run.owner_json)
    return now is None or now.attempt == owner.attempt


def _try(c: Composition, what: str, write: Callable[[], object]) -> None:
    """A full or read-only disk must not keep the rest of the end from happening."""
    try:
        write()
    except OSError as error:
        c.say(f"cannot write {what}: {error.strerror}")


def _scene(c: Composition, ended: Ended) -> Scene:
    waits = ended.outcome.kind in {"requeue", "node_failure"}
    return Scene(
        ended.outcome,
        job=c.allocation.look(fresh=True).job if waits and c.allocation.job_id else None,
        own_will=ended.own_will,
        foreground=c.foreground,
        segment=c.setup.job.slurm.array is not None,
        stuck=stuck_attempts(read_attempts(c.run)),
    )


def _requeue(c: Composition) -> None:
    """Ask for the requeue: again while Slurm does not answer, never after it has.

    A requeue that works ends scontrol, and this process, by TERM, often before scontrol has answered: then there is nothing to say.
    """
    limit, terms = c.clock.monotonic() + REQUEUE_LIMIT_S, c.signals.count(TERM)
    while True:
        try:
            return c.allocation.requeue()
        except SlurmError as error:
            c.clock.sleep(AFTER_REQUEUE_S)
            if c.signals.count(TERM) > terms:
                return None
            if not isinstance(error, SlurmUnavailableError) or c.clock.monotonic() >= limit:
                return c.say(f"no requeue: {error}; go on by `slurmtrain submit --resume`")
        c.clock.sleep(REQUEUE_RETRY_S)


def _act(c: Composition, what: str, detail: str) -> None:
    _try(c, "history.jsonl", lambda: add_act(c.run, c.disk, c.clock.time(), what, job_id=c.allocation.job_id, detail=detail))
