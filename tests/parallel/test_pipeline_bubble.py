"""The formula of the bubble equals the length of torch's own orders of work, played through with unit costs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from slurmtrain.config.parallel import V_SHAPED
from slurmtrain.parallel.bubble import expected_bubble
from slurmtrain.parallel.pipeline import SINGLE, TORCH_NAMES

COST = {"F": 1, "I": 1, "W": 1, "B": 2}


def orders(schedule: str, pp: int, vp: int, count: int):
    """(kind, stage, micro-batch) of each rank in its order."""
    if schedule == "1f1b":  # torch writes no order for it
        return [one_f_one_b(rank, pp, count) for rank in range(pp)]
    from torch.distributed.pipelining import schedules

    stage = {"num_stages": pp * vp, "group_size": pp, "group_rank": 0, "is_last": True, "submod": torch.nn.Identity()}
    stages = [SimpleNamespace(stage_index=index * pp, **stage) for index in range(vp)]
    make = getattr(schedules, TORCH_NAMES[schedule])
    made = make(stages[0] if schedule in SINGLE else stages, count, loss_fn=torch.nn.Identity())
    return [list(flat(made.pipeline_order[rank])) for rank in range(pp)]


def flat(actions):
    for action in actions:
        if action is not None and getattr(action, "sub_actions", None):
            yield from flat(action.sub_actions)
        elif action is not None and action.computation_type.value in COST:
            yield action.computation_type.value, action.stage_index, action.microbatch_index


def one_f_one_b(rank, pp, count):
    warm = min(count, pp - rank)
    steady = [work for i in range(count) for work in [("B", rank, i)] + [("F", rank, warm + i)] * (warm + i < count)]
    return [("F", rank, i) for i in range(warm)] + steady


def length(work, stages):
    """When the last rank ends, each starting as soon as it and its inputs are ready."""
    ends, free, left = {}, [0] * len(work), [list(order) for order in work]
    while any(left):
        before = sum(map(len, left))
        for rank, order in enumerate(left):
            while order and all(needed in ends for needed in needs(*order[0], stages)):
                kind, stage, number = order.pop(0)
                start = max([free[rank], *(ends[needed] for needed in needs(kind, stage, number, stages))])
                free[rank] = ends["B" if kind == "I" else kind, stage, number] = start + COST[kind]
        assert sum(map(len, left)) < before, "the order never ends"
    return max(free)


def needs(kind, stage, number, stages):
    if kind == "F":
        return [("F", stage - 1, number)] if stage else []
    if kind == "W":
        return [("B", stage, number)]
    return [("F", stage, number)] + [("B", stage + 1, number)] * (stage < stages - 1)


CASES = [
    (schedule, pp, vp, count)
    for schedule in TORCH_NAMES
    for pp in (2, 3, 4, 8)
    for vp in ((1,) if schedule in SINGLE else (2,) if schedule in V_SHAPED else (2, 3))
    for count in (pp, 2 * pp, 3 * pp, 8 * pp)
    if count >= 2 * pp or schedule not in V_SHAPED
]


@pytest.mark.parametrize("schedule", TORCH_NAMES)
def test_formula_equals_the_order_played_through(schedule):
    cases = [case for case in CASES if case[0] == schedule]
    assert len(cases) >= 12
    for _, pp, vp, count in cases:
        work = orders(schedule, pp, vp, count)
        busy = [sum(COST[kind] for kind, *_ in order) for order in work]
        assert set(busy) == {3 * vp * count}
        assert expected_bubble(schedule, pp, vp, count) == pytest.approx(1 - busy[0] / length(work, pp * vp), abs=1e-12), (pp, vp, count)


def test_no_pipeline_has_no_bubble():
    assert expected_bubble("1f1b", 1, 1, 4) == 0.0


@pytest.mark.parametrize(("pp", "count"), [(2, 2), (4, 8), (8, 64)])
def test_the_form_of_the_papers(pp, count):
    assert expected_bubble("gpipe", pp, 1, count) == pytest.approx((pp - 1) / (count + pp - 1))
    assert expected_bubble("interleaved", pp, 4, count) == pytest.approx((pp - 1) / (4 * count + pp - 1))
