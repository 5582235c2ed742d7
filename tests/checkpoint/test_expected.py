"""What a checkpoint of a job holds, told by its configuration: exactly what the trainer saves."""

from __future__ import annotations

import pytest
import torch

from slurmtrain.checkpoint.expected import Expected, misfits, of_checkpoint, of_job
from slurmtrain.checkpoint.state import dtype_name
from slurmtrain.config.data import DataConfig
from slurmtrain.config.job import JobConfig, RunConfig
from slurmtrain.config.training import OptimizerConfig, TrainingConfig
from slurmtrain.parallel.parameters import LocalParameter
from slurmtrain.parallel.parts import stage_layouts
from slurmtrain.store.manifest import Manifest, TensorEntry
from slurmtrain.train.ema import Average
from slurmtrain.train.optimizer import make_optimizer
from slurmtrain.train.state import tensors
from tests.models.peers import GPT2, shape
from tests.train.fused import Held

OPTIMIZERS = {
    "adamw": {},
    "sgd": {"momentum": 0.9},
    "sgd without momentum": {},
    "adafactor": {},
    "muon": {},
}


def job_of(model, optimizer, **training):
    return JobConfig(
        run=RunConfig(name="run"),
        model=model,
        data=DataConfig(path="tokens"),
        training=TrainingConfig(steps=10, sequence_length=32, global_batch=8, **training),
        optimizer=optimizer,
    )


@pytest.mark.parametrize("change", [{}, GPT2, {"family": "qwen3", "kv_heads": 2, "head_dim": 16, "tied_embeddings": True}], ids=str)
@pytest.mark.parametrize("words, keys", OPTIMIZERS.items(), ids=OPTIMIZERS.keys())
def test_it_is_what_the_trainer_saves(change, words, keys):
    model, config = shape(change), OptimizerConfig(name=words.split()[0], **keys)
    parameters = []
    for name, layout in stage_layouts(model, range(model.layers), first=True, last=True, index=0, size=1).items():
        value = torch.zeros(layout.shape)
        parameters.append(LocalParameter(name, Held(value, value), layout.parts, owned=True, decays=value.ndim > 1))
    average = Average(parameters, 0.9)
    saved = {
        part.name: (part.global_shape, dtype_name(tensor.dtype))
        for _, part, tensor in tensors(parameters, make_optimizer(parameters, config), average)
    }
    assert of_job(job_of(model, config, ema_decay=0.9), "job.toml") == Expected(saved, "job.toml")
    without = {name: kind for name, kind in saved.items() if not name.startswith("ema/")}
    assert of_job(job_of(model, config), "job.toml").kinds == without


def test_another_checkpoint_says_all_but_its_random_states():
    entries = {name: TensorEntry((3,), "float32", ()) for name in ("model/w", "optimizer/w/exp_avg", "ema/w", "rng/pp0/cpu")}
    told = of_checkpoint(Manifest(1, 1, 1, {}, {}, entries), "run@1")
    assert list(told.kinds) == ["model/w", "optimizer/w/exp_avg", "ema/w"]
    assert list(told.of(("model", "ema"))) == ["model/w", "ema/w"]


def kinds(*names, form=(3,), dtype="float32"):
    return dict.fromkeys(names, (form, dtype))


FAULTS = {
    "none": (kinds("a"), kinds("a"), None),
    "missing": (kinds("a"), kinds("a", "b", "c"), "X has no b (and 1 more), which Y has"),
    "extra": (kinds("a", "q", "r"), kinds("a"), "X has q (and 1 more), which Y has not"),
    "renamed": (
        kinds("layers.0.up", "zzz"),
        kinds("layers.0.upper"),
        "X has no layers.0.upper, which Y has; it has layers.0.up, which is none of Y's",
    ),
    "shape": (kinds("a", "b", form=(4,)), kinds("a", "b"), "X: a (and 1 more) has shape (4,), (3,) in Y"),
    "type": (kinds("a", dtype="bfloat16"), kinds("a"), "X: a has elements of type bfloat16, float32 in Y"),
}


@pytest.mark.parametrize("found, wanted, says", FAULTS.values(), ids=FAULTS.keys())
def test_what_does_not_fit_is_named(found, wanted, says):
    assert misfits(found, wanted, has="X", wants="Y") == says
