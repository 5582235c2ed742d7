"""`python -m slurmtrain.preflight.node RUN ATTEMPT`: one task per node before the world starts; writes attempts/NNNN/nodes/NODE.json.

That the answer is there shows that python runs, that the package can be imported, and that this node can write where the batch host
reads; the nonce in it shows that both see the same folder. What cannot be written is said on stderr and by exit code 1.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurmtrain.atomic import Disk, SystemDisk
from slurmtrain.clock import Clock, SystemClock
from slurmtrain.preflight.answer import describe, node_name
from slurmtrain.preflight.leftovers import remove_leftovers
from slurmtrain.rundir import RunDir

SHARED = ("checkpoints", "events")
"""Folders of a run that the ranks of every node write into."""


def write_faults(folders: Sequence[Path]) -> Iterator[str]:
    """One line for each folder in which no file can be made."""
    for folder in folders:
        try:
            folder.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".check-"):
                pass
        except OSError as error:
            yield f"cannot write into {folder}: {error.strerror}"


def check(run: RunDir, number: int, environ: Mapping[str, str], disk: Disk, clock: Clock) -> str:
    """Clear away what killed starts left, and write this node's answer; a line that says why there is none, or an empty one."""
    node, attempt = node_name(environ), run.attempt(number)
    remove_leftovers(clock)
    try:
        nonce = attempt.nonce.read_text()
    except OSError as error:
        return f"{node}: cannot read {attempt.nonce}: {error.strerror}: is {run.path} on a file system that all nodes see?"
    answer = describe(node, nonce, write_faults([run.path / name for name in SHARED]), environ)
    try:
        disk.write(attempt.node_answer(node), answer.to_json())
    except OSError as error:
        return f"{node}: cannot write {attempt.node_answer(node)}: {error.strerror}"
    return ""


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 when the answer was written."""
    run, number = argv
    fault = check(RunDir(Path(run)), int(number), os.environ, SystemDisk(), SystemClock())
    if fault:
        sys.stderr.write(fault + "\n")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
