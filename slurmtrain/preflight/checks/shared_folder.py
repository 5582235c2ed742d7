"""The run's folders, from this node: what is written there is durable and can be read."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks._remedies import advice, said
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts, writes_shared
from slurmtrain.preflight.request import Request


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 as others of its kind
    for name, one in facts["folders"].items():
        if "error" in one:
            yield Trouble("fail", said(one), advice(one), name)
        elif not one["same"]:
            remedy = "the node or the file system damages data: take it out of service"
            yield Trouble("fail", "what was read is not what was written", remedy, name)


CHECK = Check("shared-folder", "shared", "the shared folders take a file, make it durable and give it back", judge, wanted=writes_shared)
