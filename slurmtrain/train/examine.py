"""When replicas are compared, and what all ranks do when they differ.

Every `recovery.corruption.every_steps` steps, before every save (so that no checkpoint is newer than the newest comparison that was well),
and after each step of a span that is under examination. On a difference all ranks hear it at the same step: nothing is saved any more,
the event `corruption` names who is odd, examination.json says what is to be seen next (`resilience.examination`), and the attempt ends
by SilentCorruptionError on all ranks alike.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from slurmtrain.atomic import Disk, SystemDisk
from slurmtrain.checkpoint.group import Group, on_rank_0
from slurmtrain.clock import Clock
from slurmtrain.errors import SilentCorruptionError
from slurmtrain.resilience.examination import Examination, Sight, Suspect, agreed, differed, given_up, read_examination
from slurmtrain.resilience.exclude import Blame, avoid
from slurmtrain.resilience.records import read_attempt
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.world import World
from slurmtrain.store.aside import set_aside
from slurmtrain.store.listing import steps_present
from slurmtrain.telemetry.history import add_act
from slurmtrain.train.replicas import Odd, Replicas

if TYPE_CHECKING:
    from slurmtrain.train.session import Session

Tell = Callable[..., None]


class Examiner:
    """Of one rank; all methods are called by all ranks. `equal_at`: the newest step at which all replicas were equal.

    `hours`: how long a node that is to blame is avoided; `tell`: emits an event, on rank 0 alone.
    """

    def __init__(
        self,
        run: RunDir,
        world: World,
        replicas: Replicas,
        group: Group,
        *,
        every_steps: int,
        hours: float,
        clock: Clock,
        tell: Tell,
        step: int,
        disk: Disk | None = None,
    ) -> None:
        self._run, self._world, self._replicas, self._group = run, world, replicas, group
        self._every, self._hours, self._clock, self._tell = every_steps, hours, clock, tell
        self._disk = disk or SystemDisk()
        self.equal_at = step
        self.exam: Examination | None = on_rank_0(group, lambda: read_examination(run.examination_json))

    def after(self, step: int) -> None:
        """After a step. Raises SilentCorruptionError on all ranks alike, when some replicas differ."""
        exam = self.exam
        examined = exam is not None and exam.open and step <= exam.to_step
        if examined or step % self._every == 0:
            self.compare(step)
        if exam is not None and exam.open and step >= exam.to_step:
            self._close(agreed(exam), step)

    def compare(self, step: int) -> None:
        """Now, unless this step's were compared already. Raises as `after`."""
        if self.equal_at == step:
            return
        odd = self._replicas.compare()
        if odd is None:
            self.equal_at = step
            return
        raise self._fault(odd, step)

    def went_back(self, step: int) -> None:
        """All ranks have loaded the same checkpoint."""
        self.equal_at = step

    def _fault(self, odd: Odd, step: int) -> SilentCorruptionError:
        suspects = self._suspects(odd)
        names, doubt = "; ".join(map(str, suspects)), "" if odd.certain else " (one of them; none is outvoted)"
        since = f"all replicas were equal at step {self.equal_at}"
        on_rank_0(self._group, lambda: self._record(odd, suspects, step))
        return SilentCorruptionError(f"after step {step} replicas differ: {names}{doubt}; {since}; nothing was saved since")

    def _suspects(self, odd: Odd) -> tuple[Suspect, ...]:
        """The odd ranks with their devices; each rank tells its own."""
        world = self._world
        mine = Suspect(world.rank, world.node, world.local_rank, uuid_of(world.device))
        everybody = self._group.gather(mine)
        found: tuple[Suspect, ...] = self._group.broadcast(None if everybody is None else tuple(everybody[rank] for rank in odd.ranks))
        return found

    def _record(self, odd: Odd, suspects: tuple[Suspect, ...], step: int) -> None:
        """On rank 0: what comes next first, then what people see. Raises OSError."""
        world, record = self._world, read_attempt(self._run, self._world.attempt)
        spares = record.spares if record is not None else ()
        sight = Sight(world.attempt, step, self.equal_at, suspects, odd.certain, world.nodes, spares)
        exam = differed(self.exam, sight)
        told = [{"rank": one.rank, "node": one.node, "gpu": one.gpu, **({"uuid": one.uuid} if one.uuid else {})} for one in suspects]
        self._tell("corruption", step=step, equal_at=self.equal_at, suspects=told, certain=odd.certain, **_next(exam))
        self._write(exam)
        put_aside_after(self._run, exam.from_step, "replicas differed later: made after the newest comparison that was well")

    def _close(self, exam: Examination, step: int) -> None:
        """The span was run again, and all were equal."""
        self.exam = exam
        if self._group.rank == 0:
            self._tell("corruption", step=step, equal_at=self.equal_at, suspects=[], certain=True, **_next(exam))
        on_rank_0(self._group, lambda: self._write(exam))

    def _write(self, exam: Examination) -> None:
        """Raises OSError for examination.json alone: the rest is for people, or for later."""
        self._disk.write(self._run.examination_json, exam.to_json())
        detail = f"{exam.finding}: {exam.why}" if exam.finding else f"{exam.stage}: steps {exam.from_step + 1} to {exam.to_step} again"
        with suppress(OSError):
            add_act(self._run, self._disk, self._clock.time(), "silent corruption", detail=detail)
        if exam.finding == "persistent":
            blame = Blame(exam.node, "silent corruption", exam.why)
            with suppress(OSError, ValueError):
                avoid(self._run.exclude_json, self._disk, [blame], attempt=self._world.attempt, now=self._clock.time(), hours=self._hours)


def open_examiner(session: Session, tell: Tell, clock: Clock) -> Examiner | None:
    """None where nothing is to be compared. Collective."""
    wish = session.job.recovery
    if not wish.corruption.every_steps:
        return None
    place, world = session.mesh.coordinates(), torch.distributed.group.WORLD
    replicas = Replicas(session.built, session.optimizer, session.average, place=place, group=session.group, world=world)
    if not replicas.any:
        put_aside_unsure(session.run, session.group, compares=False)
        return None
    return Examiner(
        session.run,
        session.world,
        replicas,
        session.group,
        every_steps=wish.corruption.every_steps,
        hours=wish.exclude_hours,
        clock=clock,
        tell=tell,
        step=session.progress.step,
    )


def _next(exam: Examination) -> dict[str, Any]:
    """Of an event: the stage that comes next, or what was found."""
    if not exam.finding:
        return {"stage": exam.stage, "again": [exam.from_step + 1, exam.to_step]}
    return {"stage": exam.stage, "finding": exam.finding, "why": exam.why, **({"node": exam.node} if exam.node else {})}


def put_aside_after(run: RunDir, step: int, why: str) -> list[tuple[int, str]]:
    """Set every checkpoint of a later step aside; which, and why. Raises OSError."""
    newer = [one for one in steps_present(run.checkpoints) if one > step]
    for one in newer:
        set_aside(run, one, why)
    return [(one, why) for one in newer]


def put_aside_unsure(run: RunDir, group: Group, *, compares: bool, disk: Disk | None = None) -> list[tuple[int, str]]:
    """Before a start: where a corruption is under examination, nothing newer than the newest comparison that was well is gone on from.

    `compares`: whether this attempt can go on with it; else it is closed. Collective; what was set aside. Raises CheckpointError.
    """

    def deed() -> list[tuple[int, str]]:
        exam = read_examination(run.examination_json)
        if exam is None or not exam.open:
            return []
        if not compares:
            (disk or SystemDisk()).write(run.examination_json, given_up(exam, "replicas are not compared any more").to_json())
            return []
        return put_aside_after(run, exam.from_step, "a silent corruption is being examined")

    return on_rank_0(group, deed)


def uuid_of(device: torch.device) -> str:
    """NVML's name of a GPU; empty for what has none."""
    if device.type != "cuda":
        return ""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
