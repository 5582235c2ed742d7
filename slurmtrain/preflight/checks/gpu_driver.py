"""Nodes whose driver is not that of most: of another branch is a fault, another release of the same branch is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._gpus import most
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_REMEDY = "install the same driver on all nodes, and reboot those that still run the one before"


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:  # noqa: ARG001 a check's signature
    drivers = {node: str(known["driver"]) for node, known in facts.items() if known["driver"]}
    usual = most(drivers.values()) or ""
    for node, driver in drivers.items():
        if driver != usual:
            same = driver.partition(".")[0] == usual.partition(".")[0]
            yield node, Trouble("warn" if same else "fail", f"driver {driver}, {usual} on other nodes", _REMEDY)


CHECK = Check("gpu-driver", "gpus", "one driver on all nodes", compare=compare, wanted=nvidia)
