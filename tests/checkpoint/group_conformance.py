"""What every checkpoint.group.Group must do; each implementation's test class inherits this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
