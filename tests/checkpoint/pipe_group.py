"""A `checkpoint.group.Group` of forked processes, over socket pairs that their parent made: whoever's peer is gone gets EOFError."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from slurmtrain.checkpoint.wire import Wire

Pairs = dict[tuple[int, int], tuple[socket.socket, socket.socket]]


def pairs_of(groups: Sequence[Sequence[int]]) -> list[Pairs]:
    """Of each group of ranks: from its first to each other."""
    return [{(ranks[0], other): socket.socketpair() for other in ranks[1:]} for ranks in groups]


class PipeGroup:
    """The process that calls this has the number `rank`, which is one of `ranks`; it keeps its own ends and closes the others."""

    def __init__(self, rank: int, ranks: Sequence[int], pairs: Pairs) -> None:
        self.rank, self.size = ranks.index(rank), len(ranks)
        self._wires: list[Wire] = []
        for (first, other), (one, two) in pairs.items():
            mine = one if rank == first else two if rank == other else None
            if mine is not None:
                self._wires.append(Wire(mine))
            for end in (one, two):
                if end is not mine:
                    end.close()

    def gather(self, value: Any) -> list[Any] | None:
        if self.rank == 0:
            return [value, *(self._from(wire) for wire in self._wires)]
        self._to(self._wires[0], value)
        return None

    def broadcast(self, value: Any) -> Any:
        if self.rank:
            return self._from(self._wires[0])
        for wire in self._wires:
            self._to(wire, value)
        return value

    def highest(self, value: int) -> int:
        return int(self.broadcast(max(self.gather(value) or [0])))

    def barrier(self) -> None:
        self.highest(0)

    @staticmethod
    def _from(wire: Wire) -> Any:
        received = wire.receive(60.0)
        assert received is not None, "a peer hangs"
        return received[0]

    @staticmethod
    def _to(wire: Wire, value: Any) -> None:
        try:
            wire.send(value)
        except OSError as error:
            raise EOFError from error
