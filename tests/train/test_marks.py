"""What a run remembers goes on over a checkpoint; a target that was changed has not been reached.

Broken: a run that ended at its target can never be trained on towards a lower one.
"""

from __future__ import annotations

import json

import pytest

from slurmtrain.config.training import TargetConfig
from slurmtrain.train.marks import Marks
from slurmtrain.train.target import TargetState

GOAL = TargetConfig(metric="held", below=2.0, times=2, stop=True)
REACHED = TargetState(held=2, reached=True)


def stored(goal=GOAL):
    return json.loads(json.dumps(Marks(goal, gpu_s=7.5, evaluated=40, target=REACHED).to_state()))


def restored(goal, state):
    marks = Marks(goal)
    marks.restore(state)
    return marks


@pytest.mark.parametrize("goal", [GOAL, GOAL.model_copy(update={"stop": False})])
def test_the_same_goal_stays_reached(goal):
    assert restored(goal, stored()) == Marks(goal, 7.5, 40, REACHED)


@pytest.mark.parametrize("changed", [{"below": 1.5}, {"metric": "loss"}, {"times": 3}])
def test_another_goal_is_not_reached_yet(changed):
    marks = restored(GOAL.model_copy(update=changed), stored())
    assert (marks.target, marks.gpu_s, marks.evaluated) == (TargetState(), 7.5, 40)
    assert restored(GOAL, stored(goal=None)).target == TargetState()


def test_states_without_a_goal_or_without_anything_are_read():
    state = stored()
    del state["target_of"]
    assert restored(GOAL, state).target == REACHED
    assert restored(GOAL, {}) == Marks(GOAL)
