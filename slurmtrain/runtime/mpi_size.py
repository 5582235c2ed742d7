"""`python -m slurmtrain.runtime.mpi_size FOLDER`: one task of a world that says how large MPI finds it, in FOLDER/NODE.json. No torch.

A size is written after an exchange between all tasks, so that it also says that MPI reaches everybody. What keeps MPI from starting
is one line on stderr and exit code 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from slurmtrain.atomic import SystemDisk, to_json
from slurmtrain.errors import SlurmtrainError
from slurmtrain.preflight.answer import node_name
from slurmtrain.runtime.comm import start_mpi


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 when the file was written."""
    node = node_name(os.environ)
    try:
        comm = start_mpi()
        nodes = comm.allgather(node)
        told = {"v": 1, "node": node, "rank": comm.rank, "size": comm.size, "nodes": nodes, "library": comm.library}
        SystemDisk().write(Path(argv[0]) / f"{node}.json", to_json(told))
    except (SlurmtrainError, OSError) as error:
        sys.stderr.write(f"{node}: {error}\n")
        return 1
    comm.finalize()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
