"""Saving while training goes on: the state is copied to an image in memory, and a process of its own writes it.

Training stands still for the copy alone, and for the end of the last save where that is still under way. Memory: one image, as large as
what this rank owns (what its mates own, too, where they share a file), used for every save; nothing else grows.

A save ends in one of these ways, and always within `Terms.timeout_s` and some seconds: rank 0's writer publishes; a writer fails and
leaves word of it, or its rank does, when it is lost; or all ranks agree to give it up (`fail`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from slurmtrain.checkpoint.arrangement import Arrangement, arrange
from slurmtrain.checkpoint.committing import not_saved
from slurmtrain.checkpoint.forkserver import ForkServer
from slurmtrain.checkpoint.group import Failure, Group, SoloGroup, captured
from slurmtrain.checkpoint.image import fill
from slurmtrain.checkpoint.link import Link, LostError
from slurmtrain.checkpoint.local_save import LocalSaves
from slurmtrain.checkpoint.orders import Ended, Fail, Inquest, Obituary, Order, Setting, Sweep
from slurmtrain.checkpoint.reports import Report
from slurmtrain.checkpoint.saver import Header, Outcome, Register, Source, Terms
from slurmtrain.checkpoint.writer_job import named
from slurmtrain.clock import Clock, SystemClock
from slurmtrain.errors import CheckpointError, OwnershipError

ROUND_S = 0.5
"""So long a rank waits for its own writer before it asks how the others stand."""
FAIL_WITHIN_S = 10.0
"""A writer that does not give up within so long is killed."""
INQUEST_S = 60.0
ORPHAN_S = 60.0
_FREE, _CHANGED, _BUSY, _UNSETTLED = range(4)


@dataclass
class _Save:
    """A save whose end this rank has not heard of. `lost`: an inquest into its writer's end is under way."""

    seq: int
    header: Header
    stall_s: float
    deadline: float
    shared: bool = True
    lost: bool = False


class AsyncSaver:
    """A `saver.Saver` whose `begin` returns when the state is copied.

    `mates`: the ranks that share a writer with this one (`saver.shares`). `server`: started before MPI, from now on this object's; None
    starts one here. `register`: pins the image for copies from a device. `door`: see `ForkServer.start`. `orphan_s`: so long a writer
    whose rank is gone waits for others. `local`: each save goes to the nodes' own disks, and to the run folder where `begin` is told so,
    or the last save to either has failed; `waits`: `begin` returns when the save has ended, its outcomes come from `poll` all the same.
    """

    def __init__(
        self,
        terms: Terms,
        group: Group,
        mates: Group | None = None,
        *,
        server: ForkServer | None = None,
        register: Register | None = None,
        clock: Clock | None = None,
        door: str = "",
        orphan_s: float = ORPHAN_S,
        local: LocalSaves | None = None,
        waits: bool = False,
    ) -> None:
        self._terms, self._group, self._mates = terms, group, mates or SoloGroup()
        self._register, self._clock, self._orphan_s = register, clock or SystemClock(), orphan_s
        self._link = Link(server, door)
        if not self._writes:
            self._link.close()
        self._arranged: Arrangement | None = None
        self._seq = 0
        self._save: _Save | None = None
        self._outcomes: list[Outcome] = []
        self._unsettled = ""
        self._disowned = ""
        self._failed: list[Header] = []
        self._local, self._waits = local, waits
        self._last_failed = False

    def prepare(self, source: Source) -> None:
        if self._local is not None:
            self._local.open()
        if self._settle(source) == _CHANGED:
            captured(lambda: self._arrange(source))  # what goes wrong the first save says

    def begin(self, header: Header, source: Source, *, shared: bool = True, local: bool = True) -> Outcome | None:
        start = self._clock.monotonic()
        if self._settle(source) == _CHANGED:
            try:
                self._arrange(source)
            except CheckpointError as error:
                seconds = self._clock.monotonic() - start
                return Outcome(header.step, ok=False, stall_s=seconds, write_s=seconds, bytes=0, error=not_saved(header.step, error))
        self._seq += 1
        copied = self._copied(source)
        trouble = self._begin_local(header, start, wanted=local)
        self._hand_over(header, copied, start, shared=shared or trouble)
        if self._waits:
            self._settle(None)
        return None

    def poll(self) -> list[Outcome]:
        self._hear(0.0)
        return self._told()

    def wait(self) -> list[Outcome]:
        self._settle(None)
        self._sweep()
        outcomes, disowned = self._group.broadcast((self._told(), self._disowned))
        self._disowned = ""
        if disowned:
            raise OwnershipError(disowned)
        return list(outcomes)

    def fail(self, why: str) -> None:
        if self._save is not None and self._save.shared and not self._save.lost:
            self._link.fail(Fail(self._save.seq, why))
            if self._local is not None and self._local.awaits_report:
                return  # it gives up when this node's own disk has its part
            self._save.deadline = min(self._save.deadline, self._clock.monotonic() + FAIL_WITHIN_S)

    def close(self) -> None:
        self._link.close()
        if self._arranged is not None:
            self._arranged.close()
            self._arranged = None

    @property
    def _writes(self) -> bool:
        return self._mates.rank == 0

    def _settle(self, source: Source | None) -> int:
        """Wait with all ranks until nothing is under way on any; whether any has other boxes than before (_CHANGED)."""
        changed = source is not None and not self._known(source)
        while True:
            self._hear(ROUND_S)
            if self._save is None and self._local is not None:
                self._local.wait(ROUND_S)
            busy = self._save is not None or (self._local is not None and self._local.busy)
            mine = _UNSETTLED if self._unsettled else _BUSY if busy else _CHANGED if changed else _FREE
            stand = self._group.highest(mine)
            if stand <= _CHANGED:
                return stand
            if stand == _UNSETTLED:
                reasons = self._group.gather(self._unsettled)
                why = self._group.broadcast(next((one for one in reasons or [] if one), ""))
                self._unsettled = ""
                self.fail(why)

    def _known(self, source: Source) -> bool:
        return self._arranged is not None and (self._arranged.specs is source.specs or self._arranged.specs == source.specs)

    def _arrange(self, source: Source) -> None:
        if self._arranged is not None:
            self._arranged.close()
            self._arranged = None
        arranged = self._arranged = arrange(source, self._group, self._mates, image=True, register=self._register)
        if arranged.layout is not None:
            assert arranged.image is not None
            writers = arranged.writers if self._group.rank == 0 else None
            setting = Setting(self._terms, self._group.rank, arranged.layout, arranged.kinds, writers, arranged.need, self._orphan_s)
            self._link.set(setting, arranged.image.fd)

    def _copied(self, source: Source) -> Failure | None:
        """Copy this rank's state; what failed on the ranks that share the image, on the one that writes."""
        arranged = self._arranged
        assert arranged is not None
        copied = captured(lambda: fill(source, arranged.places))
        if self._mates.size == 1:
            return copied
        everybody = self._mates.gather(copied)
        failed = [(self._group.rank + i, one) for i, one in enumerate(everybody or []) if isinstance(one, Failure)]
        return Failure(f"rank {failed[0][0]}: {failed[0][1].message}", failed[0][1].kind) if failed else None

    def _begin_local(self, header: Header, start: float, *, wanted: bool) -> bool:
        """Collective: begin on the nodes' own disks, unless they have this step; whether the run folder must have it, whoever asked."""
        local = self._local
        if local is None:
            return True
        trouble = self._group.highest(2 if local.broken else int(local.failed or self._last_failed))
        if not self._group.highest(int(wanted and not local.has(header.step))):
            return True
        local.begin(header, self._clock.monotonic() - start, renew=trouble == 2)
        return trouble > 0

    def _hand_over(self, header: Header, failed: Failure | None, start: float, *, shared: bool) -> None:
        now = self._clock.monotonic()
        if not self._writes:
            self._report(None)
            return
        self._last_failed = self._last_failed and not shared
        seconds = self._terms.timeout_s
        self._save = _Save(self._seq, header, now - start, now + seconds + min(5.0, seconds / 2), shared)
        if failed is not None:
            self._lost(failed.message)
            return
        local = self._local.staging(header) if self._local is not None and self._local.awaits_report else None
        given = captured(lambda: self._link.give(Order(self._seq, header, local, shared)))
        if isinstance(given, Failure):
            self._lost(given.message)

    def _hear(self, seconds: float) -> None:
        """What the writer has to say: at once, or for so long while a save is under way."""
        end = self._clock.monotonic() + seconds
        while self._save is not None:
            now = self._clock.monotonic()
            try:
                ended = self._link.look(max(0.0, min(end, self._save.deadline) - now))
            except LostError as error:
                self._lost(str(error))
                continue
            if ended is not None:
                self._ended(ended)
            elif self._clock.monotonic() >= self._save.deadline:
                self._link.kill()
                self._lost(f"its writer did not end within {self._terms.timeout_s:g} s")
            elif self._clock.monotonic() >= end:
                return

    def _ended(self, ended: Ended) -> None:
        save = self._save
        if save is None or ended.seq != save.seq or ended.kind == "done":
            return  # of an obituary, or a save that was given up for lost
        if ended.kind == "local":
            self._report(ended.report or Failure(ended.error, "CheckpointError"))
            return
        self._save = None
        if not save.shared:
            self._report(Failure(ended.error, "CheckpointError"))  # nothing, where the word has come before
            return
        if ended.kind == "saved":
            notes = (*(self._arranged.notes if self._arranged else ()), *ended.notes)
            seconds = save.stall_s + ended.seconds
            self._outcomes.append(Outcome(save.header.step, ok=True, stall_s=save.stall_s, write_s=seconds, bytes=ended.bytes, notes=notes))
            self._failed.clear()  # the folder of this save was made after all before it were removed
            self._unsettled = "" if ended.bytes else ended.notes[0]  # the others may still wait for a folder
        elif ended.kind == "disowned":
            self._disowned = ended.error
            self._broken(save, ended.error, ended.seconds)
        elif self._group.rank == 0:
            self._broken(save, ended.error, ended.seconds)
        elif ended.kind == "failed":
            self._broken(save, named(self._group.rank, ended.error), ended.seconds)

    def _lost(self, why: str) -> None:
        """The writer cannot carry the save under way out, or is gone: a fresh one tells the others, or clears up."""
        save = self._save
        assert save is not None
        self._report(Failure(why, "CheckpointError"))
        if not save.shared:
            self._save = None
            return
        leads = self._group.rank == 0
        word = Inquest(save.seq, save.header, named(0, why)) if leads else Obituary(save.seq, save.header, why)
        given = None if save.lost else captured(lambda: self._link.give(word))
        if leads and not save.lost and not isinstance(given, Failure):
            save.lost, save.deadline = True, self._clock.monotonic() + INQUEST_S
            return
        self._save = None
        self._broken(save, named(self._group.rank, why), 0.0)

    def _report(self, word: Report | Failure | None) -> None:
        """What this rank's writer has done on the node's own disk; the first word counts."""
        if self._local is not None:
            self._local.report(word)

    def _told(self) -> list[Outcome]:
        """What has ended since the last time."""
        told = [*(self._local.take() if self._local is not None else ()), *self._outcomes]
        self._outcomes = []
        return [replace(one, stall_s=one.write_s) for one in told] if self._waits else told

    def _broken(self, save: _Save, why: str, seconds: float) -> None:
        error = not_saved(save.header.step, CheckpointError(why))
        self._outcomes.append(
            Outcome(save.header.step, ok=False, stall_s=save.stall_s, write_s=save.stall_s + seconds, bytes=0, error=error)
        )
        self._unsettled = why
        self._last_failed = True
        self._failed.append(save.header)

    def _sweep(self) -> None:
        """Clear up behind saves that failed while others were still making files; all writers are at rest now."""
        if not self._failed or self._group.rank != 0:
            return
        steps, attempt = tuple(one.step for one in self._failed), self._failed[0].attempt
        self._failed.clear()
        with suppress(CheckpointError):
            self._link.give(Sweep(0, attempt, steps))
            end = self._clock.monotonic() + FAIL_WITHIN_S
            while (left := end - self._clock.monotonic()) > 0:
                ended = self._link.look(left)
                if ended is not None and ended.seq == 0:
                    return
