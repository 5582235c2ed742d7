"""The one door to publishing on disk: a reader sees the old file or the new one, whole, and never a part.

A file: write `.<name>.<pid>.tmp` beside it, fsync, rename, fsync the folder. A folder: everything inside is written and
fsynced in a staging folder, then one rename publishes it. `create_exclusive` is a hard link to a finished temporary file, so
that of two machines one alone wins (also on NFS) and the content is there from the first moment.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, Protocol


class Disk(Protocol):
    """Publishing on a (parallel) file system. Every method may raise OSError (full, read-only, gone); nothing half is then visible."""

    def write(self, path: Path, data: bytes) -> None:
        """Publish a file, replacing an older one."""

    def create_exclusive(self, path: Path, data: bytes) -> bool:
        """Publish a file only where there is none; False when there is one."""

    def publish_dir(self, staging: Path, final: Path) -> None:
        """Rename a finished staging folder to its final name; raises FileExistsError when that is taken."""

    def append(self, path: Path, data: bytes) -> None:
        """Add whole lines to the end of a file in one write."""


def fsync_dir(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_file(path: Path) -> None:
    """Make the bytes of a closed file durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_temporary(path: Path, data: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


class SystemDisk:
    """The file systems of this machine."""

    def write(self, path: Path, data: bytes) -> None:
        temporary = _write_temporary(path, data)
        os.replace(temporary, path)
        fsync_dir(path.parent)

    def create_exclusive(self, path: Path, data: bytes) -> bool:
        temporary = _write_temporary(path, data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        fsync_dir(path.parent)
        return True

    def publish_dir(self, staging: Path, final: Path) -> None:
        if final.exists():
            raise FileExistsError(f"{final} exists already")
        os.rename(staging, final)
        fsync_dir(final.parent)

    def append(self, path: Path, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, "only a part of the lines was written", str(path))
        finally:
            os.close(fd)


def to_json(value: Any) -> bytes:
    """JSON as every file of a run folder has it: keys in the given order, two spaces, a newline at the end."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
