"""The site's own checks (preflight.commands), all at once, each with a time limit of its own."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from slurmtrain.errors import one_line
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._limits import within
from slurmtrain.shell import RC_NOT_FOUND

AT_ONCE = 8


def asked(request: Request) -> bool:
    return bool(request.site.preflight.commands)


def look(machine: Machine, request: Request) -> Facts:
    commands = request.site.preflight.commands
    rounds = -(-len(commands) // AT_ONCE)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda command: _run(machine, command, within(request) / rounds), commands.values())
        return {"commands": dict(zip(commands, found, strict=True))}


def _run(machine: Machine, command: str, limit_s: float) -> dict[str, Any]:
    """The exit code, and the line that Nagios' plugins print; what is behind a bar is for graphs."""
    try:
        argv = shlex.split(command)
    except ValueError as error:
        return {"rc": RC_NOT_FOUND, "said": f"cannot be split into words: {error}"}
    done = machine.run(*argv, timeout_s=limit_s)
    printed = [line.partition("|")[0].strip() for line in done.out.splitlines() if line.strip()]
    complaint = [line.strip() for line in done.err.splitlines()[-1:] if line.strip()]
    words = [*printed, *complaint][:1] if done.rc in range(4) else [*complaint, *printed[:1]]
    return {"rc": done.rc, "said": one_line("; before that it said: ".join(words), 160)}


SOURCE = Source("commands", look, "a command of preflight.commands hangs and outlives SIGKILL: see dmesg", asked)
