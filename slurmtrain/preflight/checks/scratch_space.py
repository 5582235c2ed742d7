"""Room on the node's own disk: what the site asks for (preflight.scratch_bytes), and what checkpoint.local takes at most."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.scratch import asked
from slurmtrain.units import format_size

_SITE = "remove what jobs before left there, or lower preflight.scratch_bytes"
_LOCAL = "remove what jobs before left there, or set checkpoint.local = false"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    if "error" in facts:
        return
    free, site, local = facts["free_bytes"], request.site.preflight.scratch_bytes, request.local_bytes - facts["local_bytes"]
    if free < max(site, local):
        why, remedy = ("preflight.scratch_bytes", _SITE) if free < site else ("checkpoint.local", _LOCAL)
        said = f"{format_size(free)} free, {format_size(max(site, local))} wanted ({why})"
        yield Trouble("fail", said, remedy, facts["folder"])


CHECK = Check("scratch-space", "scratch", "paths.scratch has room for what the site and local checkpoints want", judge, wanted=asked)
