"""How fast a folder takes and gives a file: written and fsynced, then read again after this node's cache of it was dropped.

The file has no name while it is used: a probe that is killed leaves none behind. What the servers of a parallel file system have in their
own memory is not dropped: the rate of reading is that of the way to them.
"""

from __future__ import annotations

import os
from pathlib import Path

from slurmtrain.preflight.probing import Reply
from slurmtrain.runtime.probe.deadline import Deadline

DEFAULT_BYTES = 1 << 28
BLOCK_BYTES = 4 << 20


def measure(folder: Path, size: int, name: str, deadline: Deadline) -> Reply:
    """Rates in 10^6 bytes a second. Raises OSError where the folder cannot be written."""
    path = folder / f".slurmtrain-probe-{name.replace('/', '-')}-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        path.unlink()
        written_s = _write(fd, size, deadline)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        read_s = _read(fd, size, deadline)
    finally:
        os.close(fd)
    return Reply(ok=True, figures={"write_mb_s": size / written_s / 1e6, "read_mb_s": size / read_s / 1e6, "bytes": float(size)})


def _write(fd: int, size: int, deadline: Deadline) -> float:
    """Bytes by chance: no file system can make them fewer."""
    block = memoryview(os.urandom(min(BLOCK_BYTES, size)))
    began, left = deadline.clock.monotonic(), size
    while left > 0:
        deadline.check("writing")
        left -= os.write(fd, block[: min(left, len(block))])
    os.fsync(fd)
    return max(1e-9, deadline.clock.monotonic() - began)


def _read(fd: int, size: int, deadline: Deadline) -> float:
    os.lseek(fd, 0, os.SEEK_SET)
    block = bytearray(min(BLOCK_BYTES, size))
    began, left = deadline.clock.monotonic(), size
    while left > 0:
        deadline.check("reading")
        count = os.readv(fd, [memoryview(block)[: min(left, len(block))]])
        if count == 0:
            raise OSError(0, f"{left} of {size} bytes that were written are not there")
        left -= count
    return max(1e-9, deadline.clock.monotonic() - began)
