"""Plain values of a checkpoint, changed in hundreds of ways: an error of one line, or values of the right kind; never anything else."""

from __future__ import annotations

import json
import math
import random

import pytest

from slurmtrain.config.changes import differences
from slurmtrain.config.training import LossScale, TargetConfig
from slurmtrain.data.counting import Source
from slurmtrain.errors import CheckpointError, SlurmtrainError
from slurmtrain.store.manifest import Manifest
from slurmtrain.train.marks import Marks
from slurmtrain.train.scaler import LossScaler
from slurmtrain.train.state import Progress, from_manifest, to_state
from tests.checkpoint.fuzz_mutations import mutated_state, sealed, unsealed

SOURCE = Source(1234, 16, "abc")
GOAL = TargetConfig(metric="held", below=2.0, times=2)


def manifest() -> bytes:
    marks = Marks(GOAL, gpu_s=7.5, evaluated=40, metrics={"loss": 1.5, "held": 2.5}).to_state()
    state = to_state(Progress(3, 99, 24, 7.5), SOURCE, 3, {**marks, **LossScaler(LossScale()).state(), "job": {"optimizer": {"lr": 0.1}}})
    return Manifest(3, 1, 99, {"world": 2}, {}, {}, state, t=5.0).to_json()


def restored(data):
    """What a restart takes of it."""
    found = Manifest.from_json(data)
    progress, updates = from_manifest(found, SOURCE)
    marks, scaler = Marks(GOAL), LossScaler(LossScale())
    marks.restore(found.state)
    scaler.restore(found.state)
    return progress, updates, marks, scaler


@pytest.mark.parametrize("count", [600, pytest.param(5000, marks=pytest.mark.long)])
def test_plain_values_of_another_form(count):
    lines, same = [], 0
    for seed in range(count):
        raw = unsealed(manifest())
        data, how = mutated_state(random.Random(seed), raw)
        try:
            progress, updates, marks, scaler = restored(data)
        except SlurmtrainError as error:
            lines.append(str(error))
            continue
        assert all(type(one) is int and one >= 0 for one in (progress.step, progress.tokens, progress.position, updates)), (seed, how)
        assert all(math.isfinite(one) and one >= 0 for one in (progress.seconds, marks.gpu_s, scaler.scale, scaler.clean)), (seed, how)
        assert all(map(math.isfinite, marks.metrics.values())), (seed, how)
        assert marks.evaluated is None or type(marks.evaluated) is int, (seed, how)
        state = Manifest.from_json(data).state
        assert (progress.position, updates) == (state["position"], state["optimizer_updates"]), (seed, how)
        told = state.get("job")
        if isinstance(told, dict):
            json.dumps([str(one) for one in differences(told, {"optimizer": {"lr": 0.1}})])
        same += 1
    assert [line for line in lines if not line.isprintable() or len(line) > 1000] == []
    assert min(len(lines), same) > count // 10


@pytest.mark.parametrize(
    "changes",
    [
        {"position": 1.5},
        {"position": -1},
        {"position": None},
        {"optimizer_updates": True},
        {"seconds": "1"},
        {"seed": None},
        {"gpu_seconds": "x"},
        {"evaluated": 0.5},
        {"metrics": []},
        {"metrics": {"loss": None}},
        {"target": 3},
        {"target": {"held": "1"}},
        {"loss_scale": 0},
        {"loss_scale_clean": None},
    ],
    ids=str,
)
def test_what_is_refused(changes):
    raw = unsealed(manifest())
    raw["state"] |= changes
    with pytest.raises(CheckpointError):
        restored(sealed(json.dumps(raw, separators=(",", ":")).encode()))
