"""A small file that takes long to become durable: told, and no reason to stay out, for all nodes may be slow when one job writes much."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts, writes_shared
from slurmtrain.preflight.request import Request

SLOW_S = 10.0
"""For 64 KiB, one rename and one fsync of a folder: milliseconds on a healthy file system, seconds on one that is busy."""


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 as others of its kind
    for name, one in facts["folders"].items():
        if one.get("seconds", 0.0) > SLOW_S:
            remedy = "see whether other nodes are as slow; if not, look at this node's network to the file system's servers"
            yield Trouble("warn", f"a small file took {one['seconds']:.0f} s to become durable", remedy, name)


CHECK = Check("shared-slow", "shared", "a small file is durable in the shared folders within 10 s", judge, wanted=writes_shared)
