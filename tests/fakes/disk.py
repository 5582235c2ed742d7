"""The fake of slurmtrain.atomic.Disk: real files without fsync, and faults where the test wants them."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Mapping
from pathlib import Path


class FakeDisk:
    """`faults`: {method: numbers of its calls that fail, counted from 1; None: all of them}; `code`: ENOSPC, EROFS, EIO, ...

    A call that fails leaves nothing behind. `calls`: (method, path) of every call.
    """

    def __init__(self, faults: Mapping[str, set[int] | None] | None = None, code: int = errno.ENOSPC) -> None:
        self.faults, self.code = dict(faults or {}), code
        self.calls: list[tuple[str, Path]] = []

    def write(self, path: Path, data: bytes) -> None:
        self._meet("write", path)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.fake.tmp")
        temporary.write_bytes(data)
        temporary.replace(path)

    def create_exclusive(self, path: Path, data: bytes) -> bool:
        self._meet("create_exclusive", path)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.fake.tmp")
        temporary.write_bytes(data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def publish_dir(self, staging: Path, final: Path) -> None:
        self._meet("publish_dir", final)
        if final.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final))
        staging.rename(final)

    def append(self, path: Path, data: bytes) -> None:
        self._meet("append", path)
        with open(path, "ab") as file:
            file.write(data)

    def _meet(self, method: str, path: Path) -> None:
        self.calls.append((method, path))
        number = sum(called == method for called, _ in self.calls)
        which = self.faults.get(method, set())
        if which is None or number in which:
            raise OSError(self.code, os.strerror(self.code), str(path))
