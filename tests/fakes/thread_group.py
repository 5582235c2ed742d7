"""The fake of checkpoint.group.Group: ranks are threads of one process; values are pickled on their way, as between processes."""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np


class _World:
    def __init__(self, size: int) -> None:
        self.size = size
        self.meet = threading.Barrier(size, timeout=60)
        self.slots: list[bytes] = [b""] * size
        self.parts: dict[int, _World] = {}
        self.pipes = {(a, b): queue.SimpleQueue[bytes]() for a in range(size) for b in range(size)}


class ThreadGroup:
    def __init__(self, world: _World, rank: int) -> None:
        self._world, self.rank, self.size = world, rank, world.size

    def part(self, sizes: Sequence[int]) -> ThreadGroup:
        """Collective: the ranks that this one is with when they are parted into runs of these sizes."""
        starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        assert starts[-1] == self.size, sizes
        mine = max(i for i in range(len(sizes)) if starts[i] <= self.rank)
        if self.rank == starts[mine]:
            self._world.parts[mine] = _World(sizes[mine])
        self._world.meet.wait()
        part = ThreadGroup(self._world.parts[mine], self.rank - starts[mine])
        self._world.meet.wait()
        return part

    def _exchange(self, value: Any) -> list[Any]:
        self._world.slots[self.rank] = pickle.dumps(value)
        self._world.meet.wait()
        values = [pickle.loads(slot) for slot in self._world.slots]
        self._world.meet.wait()
        return values

    def gather(self, value: Any) -> list[Any] | None:
        values = self._exchange(value)
        return values if self.rank == 0 else None

    def broadcast(self, value: Any) -> Any:
        return self._exchange(value)[0]

    def highest(self, value: int) -> int:
        return max(self._exchange(value))

    def barrier(self) -> None:
        self._world.meet.wait()

    def send(self, data: np.ndarray, to: int) -> Callable[[], None]:
        self._world.pipes[self.rank, to].put(data.tobytes())
        return lambda: None

    def receive(self, into: np.ndarray, source: int) -> Callable[[], None]:
        def wait() -> None:
            into[...] = np.frombuffer(self._world.pipes[source, self.rank].get(timeout=60), np.uint8)

        return wait

    def close(self) -> None:
        self._world.meet.abort()


def run_ranks(size: int, body: Callable[[ThreadGroup], Any]) -> list[Any]:
    """What body(group) gives back on each rank; an exception counts as a value."""

    def guarded(rank: int) -> Any:
        try:
            return body(ThreadGroup(world, rank))
        except Exception as error:  # noqa: BLE001 a test looks at it
            return error

    world = _World(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, range(size)))
