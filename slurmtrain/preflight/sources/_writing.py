"""Whether a folder does what a run wants of it: a small file is written, made durable, renamed, read back and removed."""

from __future__ import annotations

import errno
import math
import os
import secrets
from pathlib import Path
from typing import Any

from slurmtrain.atomic import SystemDisk
from slurmtrain.clock import Clock
from slurmtrain.store.space import free

BYTES = 64 << 10


def tried(folder: Path, clock: Clock) -> dict[str, Any]:
    """`seconds`, `same` (what was read is what was written), `device` (of the file system), `free_bytes`, `free_files` (None: not counted);
    or `error`, `errno` and `at`.

    The folder is made where only it is missing, as a start makes it.
    """
    path, data = folder / f".check-{secrets.token_hex(8)}.tmp", os.urandom(BYTES)
    began, at = clock.monotonic(), "write into"
    try:
        folder.mkdir(exist_ok=True)
        SystemDisk().write(path, data)
        at = "read from"
        back = path.read_bytes()
        at = "remove a file from"
        path.unlink()
        seconds, at = clock.monotonic() - began, "ask the free space of"
        device, left = folder.stat().st_dev, free(folder)
    except OSError as error:
        return {"error": error.strerror or str(error), "errno": errno.errorcode.get(error.errno or 0, ""), "at": at}
    files = None if math.isinf(left.files) else int(left.files)
    return {"seconds": seconds, "same": back == data, "device": device, "free_bytes": int(left.bytes), "free_files": files}
