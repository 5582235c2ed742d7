"""The one door to publishing on disk: a reader sees the old file or the new one, whole, and never a part.

A file: write `.<name>.<random>.tmp` beside it, fsync, rename, fsync the folder. A folder: everything inside is written and
fsynced in a staging folder, then one rename publishes it. `create_exclusive` is a hard link to a finished temporary file, so
that of two machines one alone wins (also on NFS) and the content is there from the first moment; a file system without hard
links gives it by O_EXCL, where a reader may meet the file before its content.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from pathlib import Path
from typing import Any, Protocol

from slurmtrain.syscalls import SYSTEM, Syscalls, write_new


class Disk(Protocol):
    """Publishing on a (parallel) file system. Every method may raise OSError (full, read-only, gone); nothing half is then visible."""

    def write(self, path: Path, data: bytes) -> None:
        """Publish a file, replacing an older one."""

    def create_exclusive(self, path: Path, data: bytes) -> bool:
        """Publish a file only where there is none; False when there is one. Of many that try at once one alone is told True."""

    def publish_dir(self, staging: Path, final: Path) -> None:
        """Rename a finished staging folder, whose files are fsynced, to its final name; raises FileExistsError when that is taken."""

    def append(self, path: Path, data: bytes) -> None:
        """Add whole lines to the end of a file in one write; what a full disk leaves of a line is taken back."""


def fsync_dir(path: Path) -> None:
    """Make the names in a folder durable."""
    SYSTEM.fsync_dir(path)


def fsync_file(path: Path) -> None:
    """Make the bytes of a closed file durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class SystemDisk:
    """The file systems of this machine; `calls`: the door that publishing goes through."""

    def __init__(self, calls: Syscalls = SYSTEM) -> None:
        self._calls = calls

    def write(self, path: Path, data: bytes) -> None:
        temporary = self._write_temporary(path, data)
        try:
            self._calls.rename(temporary, path)
        except BaseException:
            self._forget(temporary)
            raise
        self._calls.fsync_dir(path.parent)

    def create_exclusive(self, path: Path, data: bytes) -> bool:
        temporary = self._write_temporary(path, data)
        try:
            won = self._link(temporary, path, data)
        finally:
            self._forget(temporary)
        self._calls.fsync_dir(path.parent)
        return won

    def publish_dir(self, staging: Path, final: Path) -> None:
        taken = FileExistsError(errno.EEXIST, "exists already", str(final))
        if final.exists():
            raise taken
        self._calls.fsync_dir(staging)
        try:
            self._calls.rename(staging, final)
        except OSError as error:
            raise taken if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR} else error from None
        self._calls.fsync_dir(final.parent)

    def append(self, path: Path, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            written = os.write(fd, data)
            if written < len(data):
                _take_back(fd, written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        finally:
            os.close(fd)

    def _write_temporary(self, path: Path, data: bytes) -> Path:
        """A name of its own for each call: threads, and machines with equal pids, may publish the same file at once."""
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
        try:
            write_new(self._calls, temporary, data)
        except OSError as error:
            self._forget(temporary)
            if error.errno is None:
                raise
            raise OSError(error.errno, error.strerror, str(path)) from error  # write and fsync name no file
        except BaseException:
            self._forget(temporary)
            raise
        return temporary

    def _link(self, temporary: Path, path: Path, data: bytes) -> bool:
        try:
            self._calls.link(temporary, path)
        except FileExistsError:
            return temporary.stat().st_nlink == 2  # NFS may do it, lose its answer, and try again
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}:
                raise
            return self._create_without_links(path, data)
        return True

    def _create_without_links(self, path: Path, data: bytes) -> bool:
        try:
            write_new(self._calls, path, data)
        except FileExistsError:
            return False
        except BaseException:
            self._forget(path)
            raise
        return True

    def _forget(self, path: Path) -> None:
        try:
            self._calls.unlink(path)
        except FileNotFoundError:
            return


def _take_back(fd: int, written: int) -> None:
    """Cut off the beginning of a line that did not fit, unless somebody has written behind it."""
    end = os.lseek(fd, 0, os.SEEK_CUR)
    if os.fstat(fd).st_size == end:
        os.ftruncate(fd, end - written)


def to_json(value: Any) -> bytes:
    """JSON as every file of a run folder has it: keys in the given order, two spaces, a newline at the end."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
