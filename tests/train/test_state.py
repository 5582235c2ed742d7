"""What a checkpoint holds comes back, whatever the optimiser; what does not fit is refused; the first release's states are read."""

from __future__ import annotations

import pytest
import torch

from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.state import load_checkpoint, save_checkpoint
from slurmtrain.config.training import LossScale, OptimizerConfig
from slurmtrain.errors import CheckpointError, ConfigError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_verified
from slurmtrain.store.manifest import Manifest
from slurmtrain.train.ema import Average
from slurmtrain.train.optimizer import make_optimizer
from slurmtrain.train.scaler import LossScaler
from slurmtrain.train.state import Progress, Source, from_manifest, has_average, owned, to_state, wanted
from tests.train.fused import SHAPES, local, values_of

SOURCE = Source(seed=5, sequence_length=16, data="abc")
PROGRESS = Progress(step=3, tokens=99, position=24, seconds=7.5)


def some_rank(config, seed, decay=0.5):
    """(parameters, optimiser, average) after some updates."""
    parameters = local(values_of(seed))
    optimizer, average = make_optimizer(parameters, config), Average(parameters, decay)
    for step in range(3):
        for parameter in parameters:
            parameter.grad.copy_(torch.randn(parameter.grad.shape, generator=torch.Generator().manual_seed(seed + step)))
        optimizer.step(0.01)
        average.update()
    return parameters, optimizer, average


def saved(tmp_path, entries, state):
    run = RunDir(tmp_path / "run")
    run.create()
    save_checkpoint(
        run,
        step=PROGRESS.step,
        attempt=1,
        tokens=PROGRESS.tokens,
        layout={},
        entries=entries,
        state=state,
        group=SoloGroup(),
        owner_check=lambda: None,
        keep=2,
    )
    return newest_verified(run.checkpoints)


def all_tensors(parameters, optimizer, average):
    states = [t for tensors in optimizer.states().values() for t in tensors if t is not None]
    return [*(p.tensor for p in parameters), *states, *average.values]


@pytest.mark.parametrize("more", [{}, {"name": "sgd", "momentum": 0.9}, {"name": "adafactor"}, {"name": "muon"}], ids=str)
def test_everything_comes_back(tmp_path, more):
    config = OptimizerConfig(**more)
    parameters, optimizer, average = some_rank(config, 1)
    scaler = LossScaler(LossScale(initial=64.0))
    scaler.overflowed()
    state = to_state(PROGRESS, SOURCE, optimizer.updates, scaler.state())
    found = saved(tmp_path, owned(parameters, optimizer, average), state)
    names = {name.split("/")[0] for name in found.manifest.tensors}
    assert names == {"model", "optimizer", "ema"}
    assert {name.removeprefix("model/") for name in found.manifest.tensors if name.startswith("model/")} == set(SHAPES)

    others = some_rank(config, 2)
    load_checkpoint(found.folder, found.manifest, wanted(*others, found.manifest))
    progress, others[1].updates = from_manifest(found.manifest, SOURCE)
    assert (progress, others[1].updates) == (PROGRESS, 3)
    for a, b in zip(all_tensors(parameters, optimizer, average), all_tensors(*others), strict=True):
        assert torch.equal(a, b)
    again = LossScaler(LossScale(initial=1024.0))
    again.restore(found.manifest.state)
    assert again.scale == 32.0

    for theirs, ours in zip(parameters, others[0], strict=True):  # and both go on alike: the checkpoint carried all of the state
        ours.grad.copy_(theirs.grad)
    for one in (optimizer, others[1]):
        one.step(0.01)
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(parameters, others[0], strict=True))


def test_an_average_that_a_checkpoint_lacks_is_not_asked_of_it(tmp_path):
    parameters, optimizer, average = some_rank(OptimizerConfig(), 1)
    found = saved(tmp_path, owned(parameters, optimizer), to_state(PROGRESS, SOURCE, 3))
    assert not has_average(found.manifest)
    assert all(not part.name.startswith("ema/") for part, _ in wanted(parameters, optimizer, average, found.manifest))


def test_another_optimizers_checkpoint_is_refused_in_one_line(tmp_path):
    parameters, optimizer, _ = some_rank(OptimizerConfig(name="sgd"), 1)
    found = saved(tmp_path, owned(parameters, optimizer), to_state(PROGRESS, SOURCE, 3))
    with pytest.raises(
        ConfigError, match=r"^job: optimizer.name: another optimizer made the checkpoint of step 3, which has no optimizer/"
    ):
        wanted(parameters, make_optimizer(parameters, OptimizerConfig()), None, found.manifest)


def test_a_state_that_nobody_would_load_is_another_optimizers_too(tmp_path):
    """Broken: AdamW's checkpoint went on under SGD, whose own state is none."""
    parameters, optimizer, _ = some_rank(OptimizerConfig(), 1)
    found = saved(tmp_path, owned(parameters, optimizer), to_state(PROGRESS, SOURCE, 3))
    with pytest.raises(ConfigError, match=r"optimizer.name: another optimizer made .* which has optimizer/.*/exp_avg"):
        wanted(parameters, make_optimizer(parameters, OptimizerConfig(name="sgd")), None, found.manifest)


def test_sgd_may_go_on_without_its_momentum(tmp_path):
    parameters, optimizer, _ = some_rank(OptimizerConfig(name="sgd", momentum=0.9), 1)
    found = saved(tmp_path, owned(parameters, optimizer), to_state(PROGRESS, SOURCE, 3))
    entries = wanted(parameters, make_optimizer(parameters, OptimizerConfig(name="sgd")), None, found.manifest)
    assert {part.name.partition("/")[0] for part, _ in entries} == {"model"}


def manifest_of(state):
    return Manifest(step=3, attempt=1, tokens=99, layout={}, chunk_bytes=1, files={}, tensors={}, state=state)


def test_states_of_the_first_release_are_read():
    state = {"v": 1, "position": 24, "optimizer_updates": 3, "seed": 5, "sequence_length": 16, "data": "abc"}
    assert from_manifest(manifest_of(state), SOURCE) == (Progress(3, 99, 24, 0.0), 3)
    with pytest.raises(CheckpointError, match="lacks the trainer's state"):
        from_manifest(manifest_of({"v": 1}), SOURCE)
    with pytest.raises(ConfigError, match="was trained with 5"):
        from_manifest(manifest_of(state), Source(seed=6, sequence_length=16, data="abc"))
