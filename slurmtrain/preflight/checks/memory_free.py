"""Memory that something else holds: what a job before left, a cache that does not shrink, a neighbour."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.units import format_size


def wanted(request: Request) -> bool:
    """A site that does not say what a node has is not held to it."""
    return request.site.node.memory_bytes is not None


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    need = int(request.site.preflight.memory_free * min(_share(request), facts["limit_bytes"]))
    if facts["available_bytes"] < need:
        said = f"{format_size(facts['available_bytes'])} of memory free, {format_size(need)} wanted"
        yield Trouble("fail", said, "find what holds it (`ps aux --sort=-rss`, /dev/shm, huge pages), or lower preflight.memory_free")


def _share(request: Request) -> int:
    """The job's part of what the site says of a node."""
    node = request.site.node
    return (node.memory_bytes or 0) * (request.gpus_per_node or node.gpus) // node.gpus


CHECK = Check("memory-free", "memory", "preflight.memory_free of the job's share of node.memory_bytes is free", judge, wanted=wanted)
