"""A Comm between threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class _Board:
    """What the members of one communicator share."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=20)
        self.values: list[Any] = [None] * size
        self.children: dict[int, _Board] = {}


class ThreadComm:
    """One member; made by `run_threads`."""

    def __init__(self, board: _Board, rank: int) -> None:
        self._board, self.rank = board, rank
        self.size = board.barrier.parties
        self._splits = 0
        self.finalized = False

    def allgather(self, value: T) -> list[T]:
        self._board.values[self.rank] = value
        self._board.barrier.wait()
        gathered = list(self._board.values)
        self._board.barrier.wait()
        return gathered

    def bcast(self, value: T) -> T:
        return self.allgather(value)[0]

    def split(self, key: int) -> ThreadComm:
        keys = self.allgather(key)
        order = sorted(range(self.size), key=lambda rank: (keys[rank], rank))
        self._splits += 1
        if self.rank == 0:
            self._board.children[self._splits] = _Board(self.size)
        self._board.barrier.wait()
        return ThreadComm(self._board.children[self._splits], order.index(self.rank))

    def barrier(self) -> None:
        self._board.barrier.wait()

    def finalize(self) -> None:
        self.finalized = True


def run_threads(size: int, function: Callable[[ThreadComm], T]) -> list[T]:
    """Run the function in `size` threads, one rank each; results by rank, the first exception raised."""
    board = _Board(size)
    with ThreadPoolExecutor(size) as pool:
        return [f.result() for f in [pool.submit(function, ThreadComm(board, rank)) for rank in range(size)]]
