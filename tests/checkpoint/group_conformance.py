"""What every checkpoint.group.Group must do; each implementation's test class inherits this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slurmtrain.checkpoint.group import on_rank_0
from slurmtrain.errors import CheckpointError, CorruptCheckpointError, OwnershipError


class GroupConformance:
    """`size`: of the world; `run(body)`: what body(group) gave back on each rank, an exception counting as a value."""

    size: int

    def run(self, body: Callable[[Any], Any]) -> list[Any]:
        raise NotImplementedError

    def test_ranks_count_from_zero_in_the_order_of_results(self):
        assert self.run(lambda group: (group.rank, group.size)) == [(rank, self.size) for rank in range(self.size)]

    def test_gather_gives_rank_0_all_values_in_order_and_the_others_none(self):
        values = self.run(lambda group: group.gather({"rank": group.rank, "data": (1, b"x" * 100_000)}))
        assert values[0] == [{"rank": rank, "data": (1, b"x" * 100_000)} for rank in range(self.size)]
        assert values[1:] == [None] * (self.size - 1)

    def test_broadcast_gives_everyone_rank_0s_value(self):
        assert self.run(lambda group: group.broadcast(["of rank", group.rank])) == [["of rank", 0]] * self.size

    def test_all_hear_the_highest_value(self):
        assert self.run(lambda group: group.highest(group.rank * 3 - 1)) == [self.size * 3 - 4] * self.size

    def test_calls_may_follow_one_another(self):
        def body(group):
            seen = []
            for i in range(20):
                seen.append(group.broadcast(i * 10 + group.rank))
                group.barrier()
                group.gather(i)
            return seen

        assert self.run(body) == [[i * 10 for i in range(20)]] * self.size

    @pytest.mark.parametrize(
        "kind, expected", [(OwnershipError, OwnershipError), (CorruptCheckpointError, CorruptCheckpointError), (OSError, CheckpointError)]
    )
    def test_a_failure_of_rank_0_is_raised_on_all_alike(self, kind, expected):
        def deed():
            raise kind("one reason")

        failures = self.run(lambda group: on_rank_0(group, deed))
        assert [type(one) for one in failures] == [expected] * self.size
        assert len({str(one) for one in failures}) == 1
        assert "one reason" in str(failures[0])


class PeerConformance(GroupConformance):
    """What every checkpoint.peers.PeerGroup must do besides."""

    def test_bytes_go_round_at_the_same_time(self):
        def body(group):
            own = np.full(100_000, group.rank, np.uint8)
            got = np.empty(100_000, np.uint8)
            waits = [group.send(own, (group.rank + 1) % group.size), group.receive(got, (group.rank - 1) % group.size)]
            for wait in waits:
                wait()
            return sorted(set(got.tolist()))

        assert self.run(body) == [[(rank - 1) % self.size] for rank in range(self.size)]

    def test_what_one_sends_arrives_in_its_order(self):
        def body(group):
            if group.rank == 0:
                waits = [group.send(np.full(8, i, np.uint8), 1) for i in range(10)]
            elif group.rank == 1:
                places = [np.empty(8, np.uint8) for _ in range(10)]
                waits = [group.receive(place, 0) for place in places]
            else:
                return None
            for wait in waits:
                wait()
            return [int(place[0]) for place in places] if group.rank == 1 else None

        assert self.run(body)[1] == list(range(10))

    def test_others_of_the_group_may_gather_meanwhile(self):
        def body(group):
            got = np.empty(4, np.uint8)
            wait = group.receive(got, 0) if group.rank == 1 else None
            group.gather(group.rank)
            if group.rank == 0:
                group.send(np.arange(4, dtype=np.uint8), 1)()
            if wait is not None:
                wait()
            return got.tolist() if group.rank == 1 else None

        assert self.run(body)[1] == [0, 1, 2, 3]
