"""The node's own fast disk, paths.scratch: whether it can be written, what is free, and what this user's local checkpoints take there."""

from __future__ import annotations

import os
from pathlib import Path

from slurmtrain.config.expand import expand
from slurmtrain.errors import ConfigError
from slurmtrain.preflight.machine import CannotTellError, Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._writing import tried


def asked(request: Request) -> bool:
    return request.site.paths.scratch is not None


def look(machine: Machine, request: Request) -> Facts:
    try:
        name = expand(str(request.site.paths.scratch), machine.environ, where="site", key="paths.scratch")
    except ConfigError as error:
        raise CannotTellError(str(error), "have it set on every node, or correct paths.scratch") from None
    folder = machine.path(str(name))
    return {"folder": str(name), "local_bytes": _local_bytes(folder), **tried(folder, machine.clock)}


def _local_bytes(scratch: Path) -> int:
    """What checkpoints of this user take below it (`store.scratch`); new ones take their place."""
    found = 0
    for above, _, names in os.walk(scratch / f"slurmtrain-{os.getuid()}" / "checkpoints"):
        for name in names:
            try:
                found += (Path(above) / name).stat().st_blocks * 512
            except OSError:
                continue  # it was removed meanwhile
    return found


SOURCE = Source("scratch", look, "its disk hangs: see dmesg, have the node rebooted", asked)
