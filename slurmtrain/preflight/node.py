"""`python -m slurmtrain.preflight.node REQUEST [--bare]`: one task per node before the world starts; writes NODE.json beside the others.

That the answer is there shows that python runs, that the package can be imported, and that this node can write where the conductor
reads; the nonce in it shows that both see the same folder. Where health is asked for, the answer holds what the sources saw. It judges
nothing. What cannot be written is said on stderr and by exit code 1. `--bare`: whether the node answers at all, in no more than that.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slurmtrain.atomic import Disk, SystemDisk
from slurmtrain.clock import Clock, SystemClock
from slurmtrain.preflight.answer import describe, node_name
from slurmtrain.preflight.checks._remedies import advice
from slurmtrain.preflight.gather import Gathered, gather
from slurmtrain.preflight.leftovers import remove_leftovers, remove_memory_of_the_dead
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.registry import sources_for
from slurmtrain.preflight.request import Request, read_request
from slurmtrain.shell import SystemShell

SHARED = "shared"
"""The source that looks at the same folders."""


def write_faults(folders: Sequence[Path]) -> Iterator[str]:
    """One line for each folder in which no file can be made."""
    for folder in folders:
        try:
            folder.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".check-"):
                pass
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "")
            yield f"cannot write into {folder}: {error.strerror}: {advice({'errno': name})}"


def check(request: Request, environ: Mapping[str, str], disk: Disk, clock: Clock, *, bare: bool = False) -> str:
    """Clear away what killed starts left, and write this node's answer; a line that says why there is none, or an empty one."""
    node, began = node_name(environ), clock.time()
    remove_leftovers(clock)
    remove_memory_of_the_dead(clock)
    try:
        nonce = Path(request.nonce_file).read_text()
    except OSError as error:
        return f"{node}: cannot read {request.nonce_file}: {error.strerror}: is it on a file system that all nodes see?"
    seen = Gathered() if bare else look(request, environ, clock)
    looked_at = not bare and any(source.name == SHARED for source in sources_for(request))  # then that says it, with more
    answer = describe(node, nonce, () if looked_at else write_faults([Path(name) for name in request.shared]), environ)
    path = Path(request.answers) / f"{node}.json"
    try:
        disk.write(path, replace(answer, t=began, facts=seen.facts, unknown=seen.unknown).to_json())
    except OSError as error:
        return f"{node}: cannot write {path}: {error.strerror}"
    return ""


def look(request: Request, environ: Mapping[str, str], clock: Clock) -> Gathered:
    """What the sources that this request wants see of this node."""
    machine = Machine(SystemShell(), environ, clock)
    return gather(sources_for(request), machine, request, clock=clock, limit_s=request.site.preflight.timeout_s)


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 when the answer was written."""
    name, *options = argv
    try:
        request = read_request(Path(name))
    except (OSError, ValueError) as error:
        words = f"cannot read {name}: {error.strerror}: is it on a file system that all nodes see?" if isinstance(error, OSError) else error
        sys.stderr.write(f"{node_name(os.environ)}: {words}\n")
        return 1
    fault = check(request, os.environ, SystemDisk(), SystemClock(), bare="--bare" in options)
    if fault:
        sys.stderr.write(fault + "\n")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
