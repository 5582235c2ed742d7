"""Room for the next checkpoint on the shared file system, in bytes and files. Of two folders on one file system one is told."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts, writes_shared
from slurmtrain.preflight.request import Request
from slurmtrain.store.space import Left, Need, short_of

_REMEDY = "make room there (`slurmtrain ckpt prune`), or keep fewer checkpoints"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    need, told = Need(request.need_bytes, request.need_files), set[int]()
    for name, one in facts["folders"].items():
        if "error" in one or one["device"] in told:
            continue
        files = math.inf if one["free_files"] is None else one["free_files"]
        if short := short_of(Path(name), need, Left(one["free_bytes"], files, "on the file system")):
            told.add(one["device"])
            yield Trouble("fail", short.removeprefix(f"{name}: "), _REMEDY, name)


CHECK = Check("shared-space", "shared", "the shared file system has room for the next checkpoint", judge, wanted=writes_shared)
