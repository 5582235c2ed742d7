"""Room for the next checkpoint under the quotas, in bytes and files. A hard limit alone counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.quota import asked
from slurmtrain.store.space import Left, Need, short_of

_REMEDY = "make room there (`slurmtrain ckpt prune`), keep fewer checkpoints, or ask for more"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    """Where nobody knows what a checkpoint takes, one file of one byte must fit."""
    need = Need(max(request.need_bytes, 1), max(request.need_files, 1))
    for one in facts["left"]:
        bytes_, files = (math.inf if one[kind] is None else one[kind] for kind in ("bytes", "files"))
        left = Left(bytes_, files, one["where"])
        if short := short_of(Path(one["folder"]), need, left):
            yield Trouble("fail", short.removeprefix(f"{one['folder']}: "), _REMEDY, one["folder"])


CHECK = Check("quota", "quota", "quotas leave room for the next checkpoint", judge, wanted=asked)
