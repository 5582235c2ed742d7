"""Ranks that leave one after another: each waits until the process before it is gone."""

from __future__ import annotations

import os
import select

from slurmtrain.runtime.comm import start_mpi
from slurmtrain.runtime.finish import exit_process


def wait_for_end(pid: int) -> None:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([watched], [], [], 30)[0], f"process {pid} does not end"


if __name__ == "__main__":
    comm = start_mpi()
    pids = comm.allgather(os.getpid())
    comm.barrier()
    comm.finalize()
    rank = pids.index(os.getpid())
    if rank:
        wait_for_end(pids[rank - 1])
    print(f"rank {rank} leaves last of {rank + 1}")
    exit_process(0)
