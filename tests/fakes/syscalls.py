"""The fake of slurmtrain.syscalls.Syscalls: real calls on real files, which it can end, refuse, cut short, and write down.

    calls = FakeSyscalls(root)                       as the machine's, and `calls.log` is kept of all below `root`
    calls.asked                                      (name, path) of every call, from the first on; `calls.count`: how many
    FakeSyscalls(root, cut_at=7)                     the program ends instead of the 7th call: that call, and every one after it from any
                                                     thread, raises Cut (a BaseException) and does nothing, so that no `except` or
                                                     `finally` tidies up. `torn=True`: if it is a pwrite, half of it is done first.
                                                     `kill=True`: SIGKILL to this process in place of Cut (for a process of its own)
    FakeSyscalls(root, refusals=[Refusal(ENOSPC, at=3)])                        the 3rd call fails, once
    FakeSyscalls(root, refusals=[Refusal(EIO, calls=("fsync",), times=None)])   every fsync fails
    FakeSyscalls(root, room=5000, full=EDQUOT)       from 5000 bytes on pwrite writes what fits, then fails; removed files make room
    FakeSyscalls(root, most=100)                     no pwrite writes more than 100 bytes at once

No fsync waits for a disk: what it promised stands in the log. `close` always closes, even where it is refused or the program has ended;
`settle` is never refused. One fake may serve many threads (ranks): calls happen one at a time. It may be pickled to another process,
which then has a count and a log of its own.

What a power failure leaves is worked out from the log alone; one whole run gives every point at which the power may fail:

    for number in range(calls.count + 1):
        after_power_failure(calls.log.until(number), root, target, random.Random(seed))     # makes the new folder `target`
        ...                                                                                 # what a reader finds in it

For certain is what lay in `root` when the fake was made, bytes that were fsynced, and names (made, renamed, removed) whose folder was
fsynced. Of all else any part may be there: any names, any of the writes, torn ones and zeros too. A rename is one change of one folder.
An fsync of a file makes no name durable. `assert_nothing_bypassed(log, root)`: the tree is what the log says, so all went through here.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slurmtrain.syscalls import SYSTEM
from tests.fakes.power import Call, Log, after_power_failure, assert_nothing_bypassed, tree

__all__ = ["Call", "Cut", "FakeSyscalls", "Log", "Refusal", "after_power_failure", "assert_nothing_bypassed", "tree"]

T = TypeVar("T")


class Cut(BaseException):
    """The program has ended: a kill, which no handler sees."""


@dataclass(frozen=True)
class Refusal:
    """Calls that fail with `code`: of those in `calls` (empty: any) whose path holds `path`, `times` from number `at` on (None: all)."""

    code: int
    at: int = 1
    times: int | None = 1
    calls: tuple[str, ...] = ()
    path: str = ""


class FakeSyscalls:
    """See the module's docstring."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        cut_at: int = 0,
        torn: bool = False,
        kill: bool = False,
        refusals: Sequence[Refusal] = (),
        room: int | None = None,
        full: int = errno.ENOSPC,
        most: int | None = None,
    ) -> None:
        self.cut_at, self.torn, self.kill = cut_at, torn, kill
        self.refusals, self.room, self.full, self.most = tuple(refusals), room, full, most
        self.root = root
        self.log = Log(tree(root) if root is not None else {})
        self.asked: list[tuple[str, Path]] = []
        self.ended = False
        self._met = [0] * len(self.refusals)
        self._open: dict[int, tuple[Path, int]] = {}
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()

    @property
    def count(self) -> int:
        """Calls so far, refused ones too."""
        return len(self.asked)

    def mkdir(self, path: Path) -> None:
        self._do("mkdir", path, lambda: SYSTEM.mkdir(path))

    def rmdir(self, path: Path) -> None:
        self._do("rmdir", path, lambda: SYSTEM.rmdir(path))

    def unlink(self, path: Path) -> None:
        self._do("unlink", path, lambda: self._freeing(path, lambda: SYSTEM.unlink(path)))

    def rename(self, source: Path, target: Path) -> None:
        self._do("rename", source, lambda: self._freeing(target, lambda: SYSTEM.rename(source, target)), target=target)

    def link(self, source: Path, target: Path) -> None:
        self._do("link", source, lambda: SYSTEM.link(source, target), target=target)

    def create(self, path: Path) -> int:
        with self._lock:
            self._meet("create", path)
            fd = SYSTEM.create(path)
            self._open[fd] = (path, self.count)
            self._note("create", path, self.count)
            return fd

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        with self._lock:
            path, file = self._open[fd]
            data = memoryview(data).cast("B")
            try:
                self._meet("pwrite", path)
            except Cut:
                if self.torn and self.count == self.cut_at:
                    self._write(fd, file, data[: len(data) // 2], offset)
                raise
            count = min(len(data), self._fits(fd, len(data), offset), self.most or len(data))
            if count == 0 and len(data):
                raise OSError(self.full, os.strerror(self.full), str(path))
            return self._write(fd, file, data[:count], offset)

    def settle(self, fd: int, offset: int, length: int) -> None:
        self._do("settle", self._open[fd][0], lambda: SYSTEM.settle(fd, offset, length))

    def fsync(self, fd: int) -> None:
        path, file = self._open[fd]
        self._do("fsync", path, lambda: os.fstat(fd), file=file)

    def close(self, fd: int) -> None:
        with self._lock:
            path, file = self._open.pop(fd)
            SYSTEM.close(fd)
            if not self.ended:
                self._meet("close", path)
                self._note("close", path, file)

    def fsync_dir(self, path: Path) -> None:
        self._do("fsync_dir", path, lambda: os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY)))

    def _do(self, name: str, path: Path, deed: Callable[[], T], *, target: Path | None = None, file: int = 0) -> T:
        with self._lock:
            self._meet(name, path)
            result = deed()
            self._note(name, path, file, target=target)
            return result

    def _meet(self, name: str, path: Path) -> None:
        """Count a call; end the program, or refuse it, where the test wants that."""
        if not self.ended:
            self.asked.append((name, path))
            if self.count == self.cut_at:
                self.ended = True
                if self.kill and not (self.torn and name == "pwrite"):
                    os.kill(os.getpid(), signal.SIGKILL)
        if self.ended:
            raise Cut(f"{name} {path}")
        for i, one in enumerate(self.refusals):
            if name == "settle" or (one.calls and name not in one.calls) or one.path not in str(path):
                continue
            self._met[i] += 1
            if one.at <= self._met[i] and (one.times is None or self._met[i] < one.at + one.times):
                raise OSError(one.code, os.strerror(one.code), str(path))

    def _write(self, fd: int, file: int, data: memoryview, offset: int) -> int:
        count = SYSTEM.pwrite(fd, data, offset)
        self._note("pwrite", self._open[fd][0], file, offset=offset, data=bytes(data[:count]))
        if self.ended and self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return count

    def _fits(self, fd: int, length: int, offset: int) -> int:
        """How many of these bytes there is room for; that room is then taken."""
        if self.room is None:
            return length
        size = os.fstat(fd).st_size
        count = min(length, max(size + self.room - offset, 0))
        self.room -= max(offset + min(count, self.most or count) - size, 0)
        return count

    def _freeing(self, path: Path, deed: Callable[[], None]) -> None:
        try:
            status = path.lstat()
            freed = status.st_size if status.st_nlink == 1 and path.is_file() else 0
        except FileNotFoundError:
            freed = 0
        deed()
        if self.room is not None:
            self.room += freed

    def _note(self, name: str, path: Path, file: int, *, target: Path | None = None, offset: int = 0, data: bytes = b"") -> None:
        if self.root is not None and path.is_relative_to(self.root):
            where = path.relative_to(self.root).as_posix()
            to = target.relative_to(self.root).as_posix() if target is not None else ""
            self.log.calls.append(Call(self.count, name, where, to, file, offset, data))
