"""What every Comm must do; MPI's and the threads' both pass it."""

from __future__ import annotations

import pytest

from slurmtrain.errors import ConfigError, LaunchError
from slurmtrain.runtime.comm import Comm, raise_together


def check_comm(comm: Comm) -> None:
    """Run by all ranks of a world of two or more. Raises AssertionError."""
    rank, size = comm.rank, comm.size
    assert comm.allgather({"rank": rank, "list": [None, "x"]}) == [{"rank": r, "list": [None, "x"]} for r in range(size)]
    assert comm.allgather(None) == [None] * size
    assert comm.bcast(("address", 4711 + rank)) == ("address", 4711)
    comm.barrier()
    backwards = comm.split(size - rank)
    assert (backwards.rank, backwards.size) == (size - 1 - rank, size)
    assert backwards.allgather(rank) == list(reversed(range(size)))
    assert backwards.bcast(rank) == size - 1
    assert backwards.split(-backwards.rank).rank == rank
    _check_raise_together(comm)


def _check_raise_together(comm: Comm) -> None:
    raise_together(comm, None)
    mine = {0: None, 1: ConfigError("cannot", where="site", key="a.b", value=1)}.get(comm.rank, LaunchError("later"))
    with pytest.raises(ConfigError) as raised:
        raise_together(comm, mine)
    assert str(raised.value) == "site: a.b = 1: cannot"
