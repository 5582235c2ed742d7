"""The one door to system calls that change a file system, for what must survive a crash at any of them.

Publishing (`atomic`) and checkpoints go through it, call by call, so that tests can cut a program between any two, tear a write, fill
a disk, or work out what a power failure may leave. Reading needs no door.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class Syscalls(Protocol):
    """Calls that change something; each may raise OSError. Descriptors are those of the operating system."""

    def mkdir(self, path: Path) -> None: ...

    def rmdir(self, path: Path) -> None: ...

    def unlink(self, path: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def link(self, source: Path, target: Path) -> None: ...

    def create(self, path: Path) -> int:
        """A descriptor of a new file, for writing; raises FileExistsError where there is one."""

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Bytes that were written: may be fewer than given."""

    def settle(self, fd: int, offset: int, length: int) -> None:
        """Let the kernel begin to write these bytes to the disk; a hint that changes nothing else and never fails."""

    def fsync(self, fd: int) -> None: ...

    def close(self, fd: int) -> None: ...

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a folder durable."""


class SystemCalls:
    """The operating system's."""

    def mkdir(self, path: Path) -> None:
        path.mkdir()

    def rmdir(self, path: Path) -> None:
        path.rmdir()

    def unlink(self, path: Path) -> None:
        path.unlink()

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def settle(self, fd: int, offset: int, length: int) -> None:
        try:
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
        except OSError:
            return

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def fsync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


SYSTEM = SystemCalls()


def pwrite_all(calls: Syscalls, fd: int, data: memoryview, offset: int) -> None:
    """Write all of it, in as many calls as it takes."""
    while len(data):
        count = calls.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count


def write_new(calls: Syscalls, path: Path, data: bytes) -> None:
    """Make a file of this content, durable when it returns. What is half written after an error stays for the caller to remove."""
    fd = calls.create(path)
    try:
        pwrite_all(calls, fd, memoryview(data), 0)
        calls.fsync(fd)
    finally:
        calls.close(fd)


def remove_tree(calls: Syscalls, path: Path) -> None:
    """Remove a folder and all that is in it; links are removed, not followed. What has gone meanwhile is no error."""
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(calls, Path(entry.path))
            continue
        try:
            calls.unlink(Path(entry.path))
        except FileNotFoundError:
            continue
    try:
        calls.rmdir(path)
    except FileNotFoundError:
        return
