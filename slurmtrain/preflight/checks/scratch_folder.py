"""The node's own fast disk is there and can be written: local checkpoints, staged data and caches lie on it."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks._remedies import advice, said
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.scratch import asked


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 as others of its kind
    if "error" in facts:
        yield Trouble("fail", said(facts), advice(facts), facts["folder"])
    elif not facts["same"]:
        yield Trouble("fail", "what was read is not what was written", "the disk damages data: have it replaced", facts["folder"])


CHECK = Check("scratch", "scratch", "paths.scratch is there and can be written", judge, wanted=asked)
