"""The MPI library that mpi4py loads for the ranks, loaded in a process of its own. MPI itself is not started: nobody would answer."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from slurmtrain.errors import one_line
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._job import modules_loaded
from slurmtrain.preflight.sources._limits import within
from slurmtrain.shell import RC_TIMED_OUT

_ASK = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(json.dumps([mpi4py.__version__, MPI.Get_library_version()]))
"""
_NAME_CHARS = 60


def asked(request: Request) -> bool:
    """A script of the user's own may do without; and where a module brings MPI, only a job can tell."""
    return "mpi4py" in request.packages and modules_loaded(request)


def look(machine: Machine, request: Request) -> Facts:
    limit, named = within(request), request.site.python.mpi4py_libmpi
    if named is not None:
        machine = replace(machine, environ={"MPI4PY_LIBMPI": named, **machine.environ})
    done = machine.run(request.python or sys.executable, "-c", _ASK, timeout_s=limit)
    if done.rc == RC_TIMED_OUT:
        return {"error": f"no answer in {limit:g} s"}
    try:
        version, library = json.loads(done.out.splitlines()[-1])
    except (ValueError, IndexError):
        ended = f"ended by signal {-done.rc}" if done.rc < 0 else f"exit code {done.rc}"
        return {"error": one_line((done.err.strip().splitlines() or [ended])[-1], 160)}
    return {"mpi4py": version, "library": one_line(library.strip("\0").splitlines()[0], _NAME_CHARS)}


SOURCE = Source("mpi", look, "the folder of the MPI library hangs: look at its file system", asked)
