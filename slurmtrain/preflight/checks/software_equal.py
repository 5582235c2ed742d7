"""The same versions on all nodes: ranks of two versions of torch or MPI may meet, and then disagree about bytes on the wire.

What is not there at all is told by `software`, where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._majority import odd_ones, spread
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.software import asked

_REMEDY = "use one interpreter on a file system that all nodes see, or install the same on all of them"


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:  # noqa: ARG001 as others of its kind
    seen = {node: known["packages"] for node, known in facts.items() if "packages" in known}
    for name in dict.fromkeys(name for packages in seen.values() for name in packages):
        values = {node: packages[name]["version"] for node, packages in seen.items() if packages.get(name, {}).get("version")}
        common, odd = odd_ones(values)
        for node in odd:
            words = f"{values[node]} there, {common} on most nodes" if common else f"versions differ: {spread(values)}"
            yield node, Trouble("fail", words, _REMEDY, name)


CHECK = Check("software-equal", "software", "the ranks' packages have the same versions on all nodes", compare=compare, wanted=asked)
