"""A target is reached by values in a row that are below, and told once."""

from __future__ import annotations

import json

import pytest

from slurmtrain.config.training import TargetConfig
from slurmtrain.train.target import Cost, TargetState, seen


def told(goal, values, state=None):
    """Positions at which the target was told, and the last state."""
    state, at = state or TargetState(), []
    for number, value in enumerate(values):
        state, now = seen(state, goal, value)
        at += [number] * now
    return at, state


@pytest.mark.parametrize(
    ("times", "values", "at"),
    [
        (1, [3.0, 2.0, 1.9], [2]),
        (1, [1.0, 3.0, 1.0], [0]),
        (2, [1.0, 3.0, 1.0, 1.0, 1.0], [3]),
        (3, [1.0, 1.0, 2.0, 1.0, 1.0], []),
        (2, [1.0, float("nan"), 1.0, float("-inf"), 1.0], []),
    ],
)
def test_values_in_a_row(times, values, at):
    assert told(TargetConfig(below=2.0, times=times), values)[0] == at


def test_the_row_goes_on_over_a_checkpoint():
    goal = TargetConfig(below=2.0, times=3)
    _, state = told(goal, [1.0, 1.0])
    again = TargetState.from_json(json.loads(json.dumps(state.to_json())))
    at, state = told(goal, [1.0, 1.0], again)
    assert at == [0]
    assert told(goal, [1.0] * 5, TargetState.from_json(state.to_json()))[0] == [], "once in a run"
    assert TargetState.from_json({}) == TargetState()


def test_gpu_hours():
    assert Cost(10, 1800.0, 8 * 1800.0, 4000.0).to_fields() == {"tokens": 10, "train_s": 1800.0, "elapsed_s": 4000.0, "gpu_hours": 4.0}
