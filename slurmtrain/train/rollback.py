"""Back to the last good checkpoint within an attempt: by the code of a resume, on all ranks alike.

Good is what was saved before the fault began, and is as old as `recovery.numerics.older_by` asks. Everything newer is set aside, so that
no start finds it, and the same steps can be saved again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from slurmtrain.atomic import Disk, SystemDisk
from slurmtrain.checkpoint.group import on_rank_0
from slurmtrain.clock import Clock
from slurmtrain.errors import NonFiniteError
from slurmtrain.store.local import newest_local
from slurmtrain.telemetry.history import add_act
from slurmtrain.telemetry.interventions import Rollback
from slurmtrain.train.examine import put_aside_after
from slurmtrain.train.numerics import Fault, Verdict
from slurmtrain.train.saving import Saves
from slurmtrain.train.session import Session, load_older


def go_back(session: Session, saves: Saves, fault: Fault, step: int, *, verdict: Verdict, clock: Clock) -> Rollback:
    """Load, and write down what is changed from here on. Collective; nothing of the step was updated.

    Raises NonFiniteError, on all ranks alike, where the verdict is the end or there is no such checkpoint; what `restore` raises;
    CheckpointError where it cannot be written down: what is not counted is not done.
    """
    saves.settle()
    durable = "there is none" if saves.durable is None else f"step {saves.durable}"
    ending, numerics = f"nothing was updated; last durable checkpoint: {durable}", session.numerics
    if verdict == "end":
        done = len(numerics.book.rollbacks)
        spent = f"; went back {done} of {numerics.config.rollbacks} times already" if done else ""
        raise NonFiniteError(f"{fault.text}{spent}; {ending}")
    reached, began, most = session.batches.position, numerics.began, numerics.good_until
    found = load_older(session, most)
    if found is None:
        raise NonFiniteError(f"{fault.text}; no checkpoint up to step {most} is there to go back to; {ending}")
    way = numerics.rollback(step, found.step, fault.cause, (session.progress.position, reached))
    way = replace(way, began=began, attempt=session.world.attempt, t=clock.time())
    numerics.book = numerics.book.with_rollback(way)
    on_rank_0(session.group, lambda: _write_down(session, way, fault, SystemDisk()))
    if session.local is not None and session.local.saves is not None:
        session.local.saves.forget_after(found.step)
    own = found.folder.parent == session.run.checkpoints
    saves.went_back(found.step if own else None)
    return way


def _write_down(session: Session, way: Rollback, fault: Fault, disk: Disk) -> None:
    """On rank 0: the book first, for it counts. Raises OSError."""
    run = session.run
    disk.write(run.numerics_json, session.numerics.book.to_json())
    put_aside_after(run, way.to, f"the run went back: {fault.text}")
    newest = newest_local(run)
    if newest is not None and newest.step > way.to:
        run.local_json.unlink(missing_ok=True)
    with suppress(OSError):
        add_act(run, disk, way.t, "rollback", detail=f"step {way.step} to {way.to}: {fault.text}")


def note_skip(session: Session) -> None:
    """A step was left out: rank 0 writes the count down, if it can."""
    if session.group.rank == 0:
        with suppress(OSError):
            SystemDisk().write(session.run.numerics_json, session.numerics.book.to_json())
