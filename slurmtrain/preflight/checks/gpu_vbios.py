"""Boards whose VBIOS is not that of most boards of their name: they may have other limits of power and clocks than the rest.

A fleet has several after repairs; none is a fault in itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._gpus import gpus, most, named
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_REMEDY = "have its firmware updated to the others'; where it is slower than they are, that may be why"


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:  # noqa: ARG001 a check's signature
    versions: dict[str, list[str]] = {}
    for known in facts.values():
        for gpu in gpus(known):
            versions.setdefault(gpu["name"], []).append(gpu["vbios"])
    usual = {name: most(found) for name, found in versions.items()}
    for node, known in facts.items():
        odd = [gpu for gpu in gpus(known) if gpu["vbios"] and gpu["vbios"] != usual[gpu["name"]]]
        if odd:
            item = named(gpu["index"] for gpu in odd)
            yield node, Trouble("warn", f"VBIOS {odd[0]['vbios']}, {usual[odd[0]['name']]} on most others", _REMEDY, item)


CHECK = Check("gpu-vbios", "gpus", "one VBIOS on all boards of a model", compare=compare, wanted=nvidia)
