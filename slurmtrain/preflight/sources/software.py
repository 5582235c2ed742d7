"""The interpreter of the ranks: its version and its packages', none of which is imported; and the run's code."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from slurmtrain.errors import one_line
from slurmtrain.preflight.answer import PACKAGES
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._job import modules_loaded
from slurmtrain.preflight.sources._limits import within
from slurmtrain.preflight.sources._versions import seen
from slurmtrain.shell import RC_TIMED_OUT


def asked(request: Request) -> bool:
    """Where a module brings the interpreter, only a job can tell."""
    return "/" in (request.python or sys.executable) or modules_loaded(request)


def look(machine: Machine, request: Request) -> Facts:
    return {"code": _code(machine, request), "python": request.python or sys.executable, **_interpreter(machine, request)}


def _code(machine: Machine, request: Request) -> str:
    """Why the run's code cannot be seen; empty where it can, and where there is none."""
    try:
        if request.code:
            os.scandir(machine.path(request.code)).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _interpreter(machine: Machine, request: Request) -> dict[str, Any]:
    """Of another interpreter than this one, what it says itself."""
    names, limit = tuple(dict.fromkeys([*request.packages, *PACKAGES])), within(request)
    if request.python in {"", sys.executable}:
        return seen(names)
    done = machine.run(request.python, "-m", "slurmtrain.preflight.sources._versions", *names, timeout_s=limit)
    if done.rc == RC_TIMED_OUT:
        return {"error": f"no answer in {limit:g} s"}
    try:
        answer = json.loads(done.out.splitlines()[-1])
        return {"version": answer["version"], "packages": answer["packages"]}
    except (ValueError, IndexError, KeyError, TypeError):
        return {"error": one_line((done.err.strip().splitlines() or [f"exit code {done.rc}"])[-1], 160)}


SOURCE = Source("software", look, "the folder of the interpreter, or of the code, hangs: look at its file system", asked)
