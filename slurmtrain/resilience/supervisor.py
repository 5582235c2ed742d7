"""The supervisor: one process per allocation. Gates, then attempts, one after another, and the end: all is written, then the requeue.

An attempt: claim its number, make it, settle what it leaves, decide; after a fault the next one follows in the same allocation, when it
may (`ending`). The order of the end is fixed: outcome, FINISHED, history, the agents' end, owner, exit code, and `scontrol requeue` once
and last, because it kills its caller.
"""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from slurmtrain.atomic import to_json
from slurmtrain.clock import SystemClock
from slurmtrain.errors import EXIT_FAULT, EXIT_NO_RESTART, EXIT_OK, OwnershipError
from slurmtrain.resilience.account import barred_link, leave_waiting
from slurmtrain.resilience.attempt import Ended, make_attempt
from slurmtrain.resilience.calls import pause
from slurmtrain.resilience.composition import Composition, compose
from slurmtrain.resilience.ending import End
from slurmtrain.resilience.nodes import Learnt
from slurmtrain.resilience.owner import claim, release
from slurmtrain.resilience.records import Owner
from slurmtrain.resilience.settling import settle, try_to_write
from slurmtrain.resilience.signals import INTERRUPT, NOTICE, TERM, Signals
from slurmtrain.resilience.takeover import take_over
from slurmtrain.resilience.verdict import write_exit_code
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.history import add_act

DISK_WAIT_S, _DISK_LOOK_S = 600.0, 5.0
"""For a disk that does not let the next attempt be claimed."""
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
    try:
        return _attempts(c, Owner(c.allocation.job_id, c.allocation.restart_count, 0, platform.node(), os.getpid(), c.clock.time()))
    finally:
        c.agents.close()


def _attempts(c: Composition, me: Owner) -> Summary:
    """One attempt after another, until the end is decided."""
    learnt, first = Learnt(), True
    while True:
        try:
            owner = _claim(c, me)
        except OwnershipError as error:
            return _early(c, EXIT_NO_RESTART, "refused", str(error))
        except OSError as error:
            return _early(c, EXIT_FAULT, "failed", f"no further attempt: {error}; go on by `slurmtrain submit --resume`")
        over = take_over(c, owner, learnt) if first else None
        if over is not None:
            return _finish(c, owner, *over)
        first = False
        _act(c, "start", f"attempt {owner.attempt}")
        ended = make_attempt(c, owner, learnt)
        after = settle(c, owner, ended, learnt)
        if isinstance(after, End):
            return _finish(c, owner, ended, after)
        c.say(f"{after.why}{f', after a pause of {after.delay_s:.0f} s' if after.delay_s else ''}")
        pause(c, after.delay_s)


def _claim(c: Composition, me: Owner) -> Owner:
    """The next attempt is this supervisor's; a disk that refuses (full, read-only, stale) is waited for, a while.

    Raises OwnershipError; OSError where the disk goes on refusing, or somebody calls.
    """
    limit, told = c.clock.monotonic() + DISK_WAIT_S, False
    while True:
        try:
            return claim(c.run, me, disk=c.disk, clock=c.clock, client=c.client, interrupted=lambda: c.signals.any)
        except OSError as error:
            if c.signals.any or c.clock.monotonic() >= limit:
                raise
            if not told:
                c.say(f"the next attempt cannot be claimed: {error}: waiting for the disk, up to {DISK_WAIT_S:.0f} s")
            told = True
            c.clock.sleep(_DISK_LOOK_S)


def _gate(c: Composition) -> Summary | None:
    if c.run.finished.exists():
        return _early(c, EXIT_OK, "finished", "the run is complete (FINISHED): nothing to do")
    if c.run.stop.exists():
        return _early(c, EXIT_OK, "stopped", "STOP stands in the run folder: nothing to do; `slurmtrain submit --resume` takes it away")
    if (link := barred_link(c)) is not None:
        return _early(c, link.code, link.outcome, link.why)
    return None


def _early(c: Composition, code: int, outcome: str, cause: str) -> Summary:
    c.say(cause)
    try_to_write(c, "submit/exit_code", lambda: write_exit_code(c.run, c.disk, code))
    return Summary(str(c.run.path), code, outcome, cause, job_id=c.allocation.job_id)


def _finish(c: Composition, owner: Owner, ended: Ended, end: End) -> Summary:
    outcome = ended.outcome
    if outcome.kind == "finished":
        try_to_write(c, "FINISHED", lambda: c.disk.write(c.run.finished, to_json({"v": 1, "step": outcome.step, "t": c.clock.time()})))
    c.say(f"last durable step: {outcome.last_durable_step if outcome.last_durable_step is not None else 'none'}; {end.why}")
    if c.signals.count(INTERRUPT) > 1:
        _act(c, "cancel", "Ctrl-C twice")
    _act(c, "requeue" if end.requeue else _ACT.get(outcome.kind, "fail"), f"attempt {owner.attempt}: {outcome.cause}")
    c.agents.close()
    try_to_write(c, "owner.json", lambda: release(c.run, owner, c.disk))
    try_to_write(c, "submit/exit_code", lambda: write_exit_code(c.run, c.disk, end.code))
    if end.requeue or end.waits:
        leave_waiting(c, ask=end.requeue, delay_s=end.delay_s)
    return Summary(
        str(c.run.path), end.code, outcome.kind, outcome.cause, owner.attempt, owner.job_id, outcome.step, outcome.last_durable_step
    )


def _act(c: Composition, what: str, detail: str) -> None:
    try_to_write(c, "history.jsonl", lambda: add_act(c.run, c.disk, c.clock.time(), what, job_id=c.allocation.job_id, detail=detail))
