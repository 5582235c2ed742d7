"""The PCIe link of a GPU: lanes that are missing, a slower generation than it could have.

| what | grade |
|---|---|
| fewer lanes than GPU and slot have | fail: a contact, a riser |
| a slot that can do less than the same GPU's slot on most nodes | fail: a setting of the BIOS, a riser |
| a slower generation than it could have, in performance state P0 | warn |
| the same in another state | nothing: an idle GPU saves power |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._gpus import folded, gpus, most
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_RESEAT = "reboot the node; where it stays, have the GPU and its riser reseated (`lspci -vv`: LnkSta)"
_BIOS = "compare the node's BIOS with the others' (link speed of its slots), and its riser"
_LOAD = "see whether it stays so under load (`nvidia-smi -q -d PERFORMANCE`, `lspci -vv`); then have it reseated"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 a check's signature
    yield from folded((gpu["index"], trouble) for gpu in gpus(facts) for trouble in _troubles(gpu))


def _troubles(gpu: Facts) -> Iterator[Trouble]:
    if _less(gpu["pcie_width"], gpu["pcie_width_max"]):
        yield Trouble("fail", f"PCIe with {gpu['pcie_width']} lanes of {gpu['pcie_width_max']}", _RESEAT)
    if _less(gpu["pcie_gen"], gpu["pcie_gen_max"]) and gpu["pstate"] == "P0":
        yield Trouble("warn", f"PCIe of generation {gpu['pcie_gen']}, {gpu['pcie_gen_max']} could be", _LOAD)


def _less(found: int | None, wanted: int | None) -> bool:
    return found is not None and wanted is not None and found < wanted


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:  # noqa: ARG001 a check's signature
    slots: dict[tuple[str, int], dict[str, int]] = {}
    for node, known in facts.items():
        for gpu in gpus(known):
            if gpu["pcie_gen_max"] is not None:
                slots.setdefault((gpu["name"], gpu["index"]), {})[node] = gpu["pcie_gen_max"]
    found: dict[str, list[tuple[int, Trouble]]] = {}
    for (_, index), by_node in slots.items():
        usual = most(sorted(by_node.values(), reverse=True))
        for node, generation in by_node.items():
            if _less(generation, usual):
                said = f"its slot can do PCIe generation {generation}, {usual} on other nodes"
                found.setdefault(node, []).append((index, Trouble("fail", said, _BIOS)))
    for node, troubles in found.items():
        yield from ((node, trouble) for trouble in folded(troubles))


CHECK = Check("gpu-pcie", "gpus", "all PCIe lanes, at the slot's generation", judge, compare, wanted=nvidia)
