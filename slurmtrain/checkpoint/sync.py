"""Saving while training stands still: every rank streams its own file, or ranks of a node fill an image that one of them writes.

Device memory is copied a tensor at a time; no rank holds more of its state a second time than the largest tensor and some chunks, but
for the image where several ranks share a file, which is as large as what they own. Between saves three chunks are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from slurmtrain.checkpoint.arrangement import Arrangement, arrange
from slurmtrain.checkpoint.committing import Committer, not_saved, there_already
from slurmtrain.checkpoint.finite import nonfinite
from slurmtrain.checkpoint.group import Failure, Group, SoloGroup, captured, on_rank_0, reason_of
from slurmtrain.checkpoint.image import fill
from slurmtrain.checkpoint.reports import Refusal, Report, report_of
from slurmtrain.checkpoint.saver import Header, Outcome, Register, Source, Terms
from slurmtrain.checkpoint.writer_job import blame, not_finite
from slurmtrain.checkpoint.writing import Buffers, Check, Fetch, write_file
from slurmtrain.clock import Clock, SystemClock
from slurmtrain.errors import CheckpointError, OwnershipError
from slurmtrain.shell import Shell, SystemShell
from slurmtrain.store.commit import OwnerCheck, discard
from slurmtrain.syscalls import SYSTEM, Syscalls


class SyncSaver:
    """A `saver.Saver` whose `begin` returns when the checkpoint is durable.

    `mates`: the ranks that share a file with this one (`saver.shares`). `register`: pins the image for copies from a device, where there
    is one. `owner_check`: instead of a look at the run's owner.json.
    """

    def __init__(
        self,
        terms: Terms,
        group: Group,
        mates: Group | None = None,
        *,
        register: Register | None = None,
        calls: Syscalls = SYSTEM,
        clock: Clock | None = None,
        shell: Shell | None = None,
        owner_check: OwnerCheck | None = None,
    ) -> None:
        self._terms, self._group, self._mates = terms, group, mates or SoloGroup()
        self._register, self._calls, self._clock = register, calls, clock or SystemClock()
        self._committer = Committer(terms, calls=calls, clock=self._clock, shell=shell or SystemShell(), owner_check=owner_check)
        self._arranged: Arrangement | None = None
        self._buffers = Buffers()

    def prepare(self, source: Source) -> None:
        try:
            self._arrange(source)
        except CheckpointError:
            return  # the first save says so

    def begin(self, header: Header, source: Source, *, shared: bool = True, local: bool = True) -> Outcome:  # noqa: ARG002
        start = self._clock.monotonic()
        try:
            self._arrange(source)
            size, notes = self._save(header, source)
        except OwnershipError:
            raise
        except CheckpointError as error:
            seconds = self._clock.monotonic() - start
            return Outcome(header.step, ok=False, stall_s=seconds, write_s=seconds, bytes=0, error=not_saved(header.step, error))
        seconds = self._clock.monotonic() - start
        return Outcome(header.step, ok=True, stall_s=seconds, write_s=seconds, bytes=size, notes=notes)

    def poll(self) -> list[Outcome]:
        return []

    def wait(self) -> list[Outcome]:
        return []

    def fail(self, why: str) -> None:
        """Nothing is ever under way: `begin` has told all ranks the same."""

    def close(self) -> None:
        if self._arranged is not None:
            self._arranged.close()
            self._arranged = None

    def _arrange(self, source: Source) -> None:
        same = self._arranged is not None and (self._arranged.specs is source.specs or self._arranged.specs == source.specs)
        if not self._group.highest(int(not same)):
            return
        self.close()
        self._arranged = arrange(source, self._group, self._mates, image=self._mates.size > 1, register=self._register)

    def _save(self, header: Header, source: Source) -> tuple[int, tuple[str, ...]]:
        """Raises OwnershipError and CheckpointError on all ranks alike."""
        arranged = self._arranged
        assert arranged is not None
        staging = on_rank_0(self._group, lambda: self._committer.open(header, arranged.need))
        if staging is None:
            return 0, (there_already(header.step),)
        words = self._group.gather(self._word(staging, arranged, source))
        return on_rank_0(self._group, lambda: self._conclude(header, staging, words or []))

    def _conclude(self, header: Header, staging: Path, words: Sequence[Report | Refusal | None]) -> tuple[int, tuple[str, ...]]:
        """On rank 0."""
        refused = [(one.rank, one.error) for one in words if isinstance(one, Refusal)]
        if refused:
            discard(staging, self._calls)
            raise CheckpointError(blame(refused))
        return self._committer.conclude(header, staging, [one for one in words if isinstance(one, Report)])

    def _word(self, staging: Path, arranged: Arrangement, source: Source) -> Report | Refusal | None:
        """What this rank has to say of its file; None where another writes for it."""
        if self._mates.size == 1:
            return self._said(captured(lambda: self._stream(staging, arranged, source)))
        filled = captured(lambda: self._fill(arranged, source))
        everybody = self._mates.gather((self._group.rank, filled))
        if everybody is None:
            return None
        failed = [(rank, one.message) for rank, one in everybody if isinstance(one, Failure)]
        return Refusal(*failed[0]) if failed else self._said(captured(lambda: self._write(staging, arranged, arranged.boxes.__getitem__)))

    def _said(self, word: Report | Failure) -> Report | Refusal:
        return Refusal(self._group.rank, word.message) if isinstance(word, Failure) else word

    def _stream(self, staging: Path, arranged: Arrangement, source: Source) -> Report:
        check = None if self._terms.allow_nonfinite else partial(_check_finite, source)
        return self._write(staging, arranged, source.fetch, check)

    def _fill(self, arranged: Arrangement, source: Source) -> None:
        fill(source, arranged.places)
        for index, place in enumerate(arranged.places if not self._terms.allow_nonfinite else ()):
            _check_finite(source, index, place)

    def _write(self, staging: Path, arranged: Arrangement, fetch: Fetch, check: Check | None = None) -> Report:
        layout = arranged.layout
        assert layout is not None
        path = staging / layout.file
        try:
            sums = write_file(self._calls, path, layout, fetch, check=check, buffers=self._buffers)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or reason_of(error)}") from error
        return report_of(self._group.rank, layout, arranged.kinds, sums)


def _check_finite(source: Source, index: int, array: np.ndarray) -> None:
    spec = source.specs[index]
    if nonfinite(array, spec.dtype):
        raise CheckpointError(not_finite(spec.name))
