"""System calls of several writer processes in one order: a lock lets one make a call at a time, and a file keeps the log of all.

door = logged_door(folder, root, most=5000)         `folder`: of the lock and the log; `root`, `more`: as FakeSyscalls has them
log_of(folder, before)                              the calls of all processes as one Log, for what a power failure may leave
asked_of(folder)                                    (process, name, path) of every call, refused ones too
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

from slurmtrain.syscalls import Syscalls, SystemCalls
from tests.fakes.syscalls import Call, FakeSyscalls, Log

HERE = "tests.checkpoint.crash_doors"


class _Turn:
    """Who holds it is the only thread of all processes that does; may be taken again by its holder."""

    def __init__(self, path: Path) -> None:
        self._inner = threading.RLock()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self._depth = 0

    def __enter__(self) -> None:
        self._inner.acquire()
        self._depth += 1
        if self._depth == 1:
            fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._inner.release()


class LoggedSyscalls(FakeSyscalls):
    """The fake, whose calls are numbered and kept together with those of other processes."""

    def __init__(self, folder: Path, root: Path, **more: Any) -> None:
        super().__init__(None, **more)
        self.root = root
        self._folder, self._number = folder, 0
        self._lock: Any = _Turn(folder / "turn")

    @property
    def count(self) -> int:
        return self._number

    def _meet(self, name: str, path: Path) -> None:
        self._number = len(_kept(self._folder / "asked")) + 1
        _keep(self._folder / "asked", (os.getpid(), name, path))
        super()._meet(name, path)

    def _note(self, name: str, path: Path, file: int, *, target: Path | None = None, offset: int = 0, data: bytes = b"") -> None:
        super()._note(name, path, file, target=target, offset=offset, data=data)
        while self.log.calls:
            _keep(self._folder / "log", self.log.calls.pop())


def logged(word: str) -> Syscalls:
    raw = json.loads(word)
    return LoggedSyscalls(Path(raw.pop("folder")), Path(raw.pop("root")), **raw)


def logged_door(folder: Path, root: Path, **more: Any) -> str:
    return f"{HERE}:logged:{json.dumps({'folder': str(folder), 'root': str(root), **more})}"


def log_of(folder: Path, before: dict[str, bytes | None]) -> Log:
    """`before`: the tree below the root, as it was."""
    calls: list[Call] = _kept(folder / "log")
    assert [call.number for call in calls] == sorted({call.number for call in calls})
    return Log(before, calls)


def asked_of(folder: Path) -> list[tuple[int, str, Path]]:
    return _kept(folder / "asked")


def _keep(path: Path, value: Any) -> None:
    with path.open("ab") as file:
        pickle.dump(value, file)


def _kept(path: Path) -> list[Any]:
    found = []
    try:
        with path.open("rb") as file:
            while True:
                found.append(pickle.load(file))
    except (EOFError, FileNotFoundError):
        return found


def slow(word: str) -> Syscalls:
    """Calls that take so many seconds, so that what happens at a random moment happens in the midst of a save."""

    class Slow(SystemCalls):
        def __getattribute__(self, name: str) -> Any:
            time.sleep(float(word))
            return super().__getattribute__(name)

    return Slow()


def slow_door(seconds: float) -> str:
    return f"{HERE}:slow:{seconds}"
