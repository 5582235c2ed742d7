"""Cards of one kind with another firmware than most: worth knowing when one node is slow, and normal while a cluster is being updated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._majority import odd_ones, spread
from slurmtrain.preflight.checks._ports import sorted_out
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.infiniband import asked

_REMEDY = "bring all cards of a kind to one firmware (`mlxfwmanager`, `mlxfwreset`)"


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:
    boards: dict[str, dict[str, set[str]]] = {}
    for node, known in facts.items():
        for port in sorted_out(known, request).up:
            boards.setdefault(port["board"], {}).setdefault(node, set()).add(port["firmware"])
    for board, versions in boards.items():
        values = {node: " and ".join(sorted(found)) for node, found in versions.items()}
        common, odd = odd_ones(values)
        for node in odd:
            said = f"firmware {values[node]}, {common} on most nodes" if common else f"firmware differs: {spread(values)}"
            yield node, Trouble("warn", said, _REMEDY, board)


CHECK = Check("ib-firmware", "infiniband", "cards of one kind have one firmware on all nodes", compare=compare, wanted=asked)
