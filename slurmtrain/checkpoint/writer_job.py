"""One save, as a writer carries it out: alone, or with the others through small files in the staging folder (`reports`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np

from slurmtrain.checkpoint.committing import Committer, published, there_already
from slurmtrain.checkpoint.finite import nonfinite
from slurmtrain.checkpoint.group import reason_of
from slurmtrain.checkpoint.orders import Fail, Inquest, Obituary, Order, Setting
from slurmtrain.checkpoint.reports import Refusal, Report, done_of, go_name, leave_word, names_in, read_word, report_of
from slurmtrain.checkpoint.writing import write_file
from slurmtrain.clock import Clock
from slurmtrain.errors import CheckpointError
from slurmtrain.store.commit import discard
from slurmtrain.syscalls import Syscalls
from slurmtrain.units import counted

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 1.0
LOOK_S = 1.0
"""So often a writer looks whether the folder that it writes into is still there."""
OBITUARY_S = 10.0
LAST_WORDS, LAST_WORD_S = 10, 0.05


class GivenUp(Exception):  # noqa: N818 no error of this writer
    """The save has no use any more; the text says why."""


class Heard:
    """What a writer's listening thread has heard of its rank: `news` is set at each change. `next`: the next piece of work is there."""

    def __init__(self) -> None:
        self.news = threading.Event()
        self.next = False
        self.fail: Fail | None = None
        self.orphan_since: float | None = None


class Job:
    """What an order asks for. Raises GivenUp, OwnershipError, CheckpointError, OSError."""

    def __init__(
        self,
        order: Order | Obituary | Inquest,
        setting: Setting,
        boxes: Sequence[np.ndarray],
        committer: Committer,
        heard: Heard,
        *,
        calls: Syscalls,
        clock: Clock,
    ) -> None:
        self._order, self._setting, self._boxes, self._committer, self._heard = order, setting, boxes, committer, heard
        self._calls, self._clock = calls, clock
        self._deadline = clock.monotonic() + setting.terms.timeout_s
        self._staging = setting.terms.run.staging(order.header.step, order.header.attempt)
        self._looked = clock.monotonic()
        self._is_finite = setting.terms.allow_nonfinite

    def keep(self, folder: Path) -> Report:
        """Write the file to a staging folder on this node's own disk, which others of the node may have made."""
        self._check_finite()
        with suppress(FileExistsError):
            self._calls.mkdir(folder)
        return self._write_to(folder, lambda: None)

    def lead(self) -> tuple[int, tuple[str, ...]]:
        """Rank 0's: make the folder, write, hear the others, publish; (bytes of all files, notes)."""
        seq, header = self._order.seq, self._order.header
        self._blaming_itself(self._check_finite)
        if self._committer.open(header, self._setting.need) is None:
            return 0, (there_already(header.step),)
        try:
            self._calls.close(self._calls.create(self._staging / go_name(seq)))
            reports = self._hear_all(self._blaming_itself(self._write))
        except BaseException:
            self.clear()
            raise
        return self._committer.conclude(header, self._staging, reports)

    def follow(self) -> None:
        """Another rank's: wait for the folder, write, leave word there."""
        try:
            self._check_finite()
            self._await_go()
            report = self._write()
        except GivenUp:
            raise
        except Exception as error:
            self.refuse(reason_of(error))
            raise
        try:
            leave_word(self._calls, self._staging, self._order.seq, report)
        except OSError as error:
            raise self._given_up_or(error) from error

    def refuse(self, why: str) -> None:
        """Leave word of a failure, if the folder is there soon and takes it; the rank tells the others in any case."""
        pause, end = FIRST_PAUSE_S, min(self._deadline, self._clock.monotonic() + OBITUARY_S)
        with suppress(OSError, GivenUp, CheckpointError):
            while not self._may_go() and not self._heard.next and self._clock.monotonic() < end:
                pause = self._pause(pause)
            if self._may_go():
                leave_word(self._calls, self._staging, self._order.seq, Refusal(self._setting.rank, why))

    def inquest(self, why: str) -> tuple[int, tuple[str, ...]]:
        """As `lead` gives it, where the writer before this one had published; else raises CheckpointError with its reason."""
        manifest = published(self._setting.terms.run, self._order.header)
        if manifest is None:
            self.clear()
            raise CheckpointError(why)
        self._calls.fsync_dir(self._setting.terms.run.checkpoints)
        return manifest.total_bytes, (f"after it was published: {why}",)

    def clear(self) -> None:
        """Remove the staging folder, into which others may still be making files."""
        for _ in range(10):
            discard(self._staging, self._calls)
            if not self._staging.exists():
                return
            self._clock.sleep(0.02)

    def _blaming_itself(self, deed: Callable[[], T]) -> T:
        try:
            return deed()
        except CheckpointError as error:
            raise CheckpointError(blame([(self._setting.rank, str(error))])) from error

    def _check_finite(self) -> None:
        if self._is_finite:
            return
        for spec, array in zip(self._setting.layout.specs, self._boxes, strict=True):
            if nonfinite(array, spec.dtype):
                raise CheckpointError(not_finite(spec.name))
            self._look()
        self._is_finite = True

    def _write(self) -> Report:
        try:
            return self._write_to(self._staging, self._look_around)
        except CheckpointError as error:
            raise self._given_up_or(error) from error

    def _write_to(self, folder: Path, look: Callable[[], None]) -> Report:
        setting = self._setting
        path = folder / setting.layout.file
        try:
            sums = write_file(self._calls, path, setting.layout, self._boxes.__getitem__, look=look)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}") from error
        return report_of(setting.rank, setting.layout, setting.kinds, sums)

    def _given_up_or(self, error: Exception) -> Exception:
        """What an error means in a folder that is gone."""
        return error if self._staging.exists() else GivenUp("rank 0 has given it up")

    def _await_go(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._may_go():
            if self._clock.monotonic() > self._deadline:
                raise CheckpointError(f"rank 0 had made no folder within {self._setting.terms.timeout_s:g} s")
            pause = self._pause(pause)

    def _may_go(self) -> bool:
        """Whether rank 0 has made the folder ready for this very save."""
        return go_name(self._order.seq) in names_in(self._staging)

    def _hear_all(self, own: Report) -> list[Report]:
        reports, waiting = {own.rank: own}, {*(self._setting.writers or ())} - {own.rank}
        pause = FIRST_PAUSE_S
        while True:
            try:
                self._hear(reports, waiting)
                if not waiting:
                    return [reports[rank] for rank in sorted(reports)]
                pause = self._pause(pause)
            except GivenUp:
                for _ in range(LAST_WORDS):  # whose fault it was may be on its way
                    self._hear(reports, waiting)
                    self._clock.sleep(LAST_WORD_S)
                raise

    def _hear(self, reports: dict[int, Report], waiting: set[int]) -> None:
        """Read what has come. Raises CheckpointError where a writer has failed."""
        refused: list[Refusal] = []
        for name in names_in(self._staging):
            rank = done_of(name, self._order.seq)
            if rank not in waiting:
                continue
            word = read_word(self._staging / name)
            if isinstance(word, Refusal):
                refused.append(word)
            elif word is not None:
                reports[word.rank] = word
                waiting.discard(word.rank)
        if refused:
            raise CheckpointError(blame([(one.rank, one.error) for one in refused]))
        if waiting and self._clock.monotonic() > self._deadline:
            more = f" (and {counted(len(waiting) - 1, 'more rank')})" if len(waiting) > 1 else ""
            raise CheckpointError(f"no word from the writer of rank {min(waiting)}{more} within {self._setting.terms.timeout_s:g} s")

    def _pause(self, seconds: float) -> float:
        """Wait, until there is news; how long to wait next time."""
        self._heard.news.clear()
        self._look()
        since = self._heard.orphan_since
        if since is not None and self._clock.monotonic() - since > self._setting.orphan_s:
            raise GivenUp("its rank is gone, and others gave no word")
        self._clock.wait(self._heard.news, seconds)
        return min(seconds * 1.5, LONGEST_PAUSE_S)

    def _look(self) -> None:
        fail = self._heard.fail
        if fail is not None and fail.seq == self._order.seq:
            raise GivenUp(fail.why)

    def _look_around(self) -> None:
        self._look()
        if self._clock.monotonic() - self._looked < LOOK_S:
            return
        self._looked = self._clock.monotonic()
        if not self._staging.exists():
            raise GivenUp("rank 0 has given it up")


def blame(failures: list[tuple[int, str]]) -> str:
    """The first of the ranks that failed, why, and how many more there are.

    >>> blame([(3, "disk full"), (5, "disk full")])
    'rank 3: disk full (and 1 more rank)'
    """
    more = len(failures) - 1
    return named(*min(failures)) + (f" (and {counted(more, 'more rank')})" if more else "")


def named(rank: int, why: str) -> str:
    """A reason with its rank in front; one that names a rank already stays as it is.

    >>> named(3, "disk full"), named(0, "rank 3: disk full")
    ('rank 3: disk full', 'rank 3: disk full')
    """
    return why if why.startswith("rank ") else f"rank {rank}: {why}"


def not_finite(name: str) -> str:
    """Why a state is not saved.

    >>> not_finite("model/norm")
    'model/norm holds numbers that are not finite'
    """
    return f"{name} holds numbers that are not finite"
