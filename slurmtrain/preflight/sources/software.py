"""The interpreter of the ranks, started once: its version and its packages', none of which is imported; and the run's code."""

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
from slurmtrain.preflight.sources._limits import within
from slurmtrain.shell import RC_TIMED_OUT

_ASK = """
import json, platform, sys
from importlib import metadata, util
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
def there(name):
    try:
        return util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
print(json.dumps([platform.python_version(), {name: [version(name), there(name)] for name in sys.argv[1:]}]))
"""


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
    limit = within(request)
    names = dict.fromkeys([*request.packages, *PACKAGES])
    done = machine.run(request.python or sys.executable, "-c", _ASK, *names, timeout_s=limit)
    if done.rc == RC_TIMED_OUT:
        return {"error": f"no answer in {limit:g} s"}
    try:
        version, packages = json.loads(done.out.splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": one_line((done.err.strip().splitlines() or [f"exit code {done.rc}"])[-1], 160)}
    return {"version": version, "packages": {name: {"version": said, "there": there} for name, (said, there) in packages.items()}}


SOURCE = Source("software", look, "the folder of the interpreter, or of the code, hangs: look at its file system")
