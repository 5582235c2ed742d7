"""The system's disk with faults: the n-th call of a method raises."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from slurmtrain.atomic import SystemDisk


class FailingDisk(SystemDisk):
    """`faults`: {method name: (calls that fail, counted from 1), or None for all}."""

    def __init__(self, faults: dict[str, set[int] | None], code: int = errno.ENOSPC) -> None:
        self._faults, self._code = faults, code
        self.calls: list[str] = []

    def _meet(self, method: str) -> None:
        self.calls.append(method)
        if method not in self._faults:
            return
        which = self._faults[method]
        if which is None or self.calls.count(method) in which:
            raise OSError(self._code, os.strerror(self._code))

    def write(self, path: Path, data: bytes) -> None:
        self._meet("write")
        super().write(path, data)

    def publish_dir(self, staging: Path, final: Path) -> None:
        self._meet("publish_dir")
        super().publish_dir(staging, final)

    def append(self, path: Path, data: bytes) -> None:
        self._meet("append")
        super().append(path, data)
