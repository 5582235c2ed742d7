"""MPI can be loaded on the node, and is the same everywhere: worlds of two MPIs do not form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._majority import odd_ones, spread
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.mpi import asked

_REMEDY = "name the site's libmpi.so by python.mpi4py_libmpi, load its module in environment.modules, or install slurmtrain[mpich]"
_ONE = "load one module of MPI on all nodes (environment.modules), or name one libmpi.so that all see (python.mpi4py_libmpi)"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 as others of its kind
    if "error" in facts:
        yield Trouble("fail", f"mpi4py cannot load an MPI library: {facts['error']}", _REMEDY)


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:  # noqa: ARG001 as others of its kind
    values = {node: known["library"] for node, known in facts.items() if "library" in known}
    common, odd = odd_ones(values)
    for node in odd:
        words = f"MPI is {values[node]} there, {common} on most nodes" if common else f"MPI differs: {spread(values)}"
        yield node, Trouble("fail", words, _ONE)


CHECK = Check("mpi-library", "mpi", "mpi4py finds an MPI library, the same on all nodes", judge, compare, asked)
