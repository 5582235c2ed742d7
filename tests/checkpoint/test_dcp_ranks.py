"""PyTorch's format between this program and two processes of FSDP2, both ways."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from slurmtrain.checkpoint.cuts import Sizing
from slurmtrain.checkpoint.dcp import to_dcp
from slurmtrain.checkpoint.dcp_metadata import read_metadata
from slurmtrain.checkpoint.dcp_read import look, take
from slurmtrain.checkpoint.expected import Expected, of_checkpoint
from slurmtrain.store.verify import read_manifest, verify
from tests.checkpoint.foreign import contents, same
from tests.checkpoint.stored import store
from tests.mpi_world import gloo_group, run_world

SHAPES = {"first.weight": (13, 6), "first.bias": (13,), "second.weight": (1, 13), "second.bias": (1,)}
"""Rows that two ranks cannot share evenly, and one that the second has none of."""
MOMENTS = ("exp_avg", "exp_avg_sq")
STATE = {"v": 1, "optimizer_updates": 5}


def sharded():
    """A model over two ranks, its optimiser after a step, and their state dicts as a torch program saves them."""
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model = torch.nn.Sequential()
    model.add_module("first", torch.nn.Linear(6, 13))
    model.add_module("second", torch.nn.Linear(13, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(4, 6)).sum().backward()
    optimizer.step()
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer, options=flat)}


def whole(values):
    """Every sharded tensor's elements, on both ranks."""
    return {
        f"{root}.{name}": one.full_tensor().numpy()
        for root, some in values.items()
        for name, one in some.items()
        if hasattr(one, "full_tensor")
    }


def both_ways(ours: str, theirs: str, again: str):
    """Save with torch as `theirs`, load `ours` with torch, and save that as `again`; the values of the first two."""
    import torch
    import torch.distributed.checkpoint as torch_checkpoint

    warnings.simplefilter("ignore")
    gloo_group()
    values = sharded()
    torch_checkpoint.save(values, checkpoint_id=theirs)
    saved = whole(values)
    values["optimizer"] = {name: one for name, one in values["optimizer"].items() if not name.startswith("param_groups.")}
    values["slurmtrain"] = torch.zeros(read_metadata(Path(ours)).tensors["slurmtrain"].shape, dtype=torch.uint8)
    torch_checkpoint.load(values, checkpoint_id=ours)
    torch_checkpoint.save(values, checkpoint_id=again)
    del values["slurmtrain"]
    return saved, whole(values), {name: float(one) for name, one in values["optimizer"].items() if name.endswith(".step")}


def made(numbers: np.random.Generator) -> dict[str, np.ndarray]:
    weights = {f"model/{name}": numbers.random(shape, np.float32) for name, shape in SHAPES.items()}
    return weights | {f"optimizer/{name}/{kind}": numbers.random(shape, np.float32) for name, shape in SHAPES.items() for kind in MOMENTS}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    tensors = made(np.random.default_rng(4))
    manifest = store(folder / "source", 5, tensors, files=2, state=STATE)
    to_dcp(folder / "source", manifest, folder / "ours", Sizing(files=3))
    places = [str(folder / name) for name in ("ours", "theirs", "again")]
    return folder, tensors, run_world(both_ways, *places, tasks_per_node=2).results


def test_what_two_ranks_wrote_is_read_right(world):
    folder, _, results = world
    theirs = folder / "theirs"
    assert {one.file for one in read_metadata(theirs).tensors["model.first.weight"].boxes} == {"__0_0.distcp", "__1_0.distcp"}
    expected = Expected({f"model/{name}": (shape, "float32") for name, shape in SHAPES.items()}, "job.toml")
    done = take(look(theirs, expected), folder / "back", Sizing(files=1), t=1.0)
    assert verify(folder / "back") == []
    assert done.manifest.step == 0
    saved, _, _ = results[0]
    weights = {f"model/{name}": ("float32", saved[f"model.{name}"]) for name in SHAPES}
    assert same(contents(folder / "back"), weights) == []
    assert len(np.unique(weights["model/first.weight"][1])) == 78, "weights of a model, not zeros"


def test_two_ranks_load_what_this_program_wrote(world):
    _, tensors, results = world
    for _, loaded, steps in results:
        assert set(steps.values()) == {5.0}
        assert len(steps) == len(SHAPES)
        for name in SHAPES:
            assert loaded[f"model.{name}"].tobytes() == tensors[f"model/{name}"].tobytes(), name
            for kind in MOMENTS:
                assert loaded[f"optimizer.state.{name}.{kind}"].tobytes() == tensors[f"optimizer/{name}/{kind}"].tobytes(), name


def test_what_two_ranks_pass_on_comes_back_whole(world):
    """Moments too, and step and state: the program kept our header as it kept the rest."""
    folder, tensors, _ = world
    source = read_manifest(folder / "source")
    done = take(look(folder / "again", of_checkpoint(source, "source")), folder / "returned", Sizing(files=2), t=1.0)
    assert verify(folder / "returned") == []
    assert same(contents(folder / "returned"), {name: ("float32", one) for name, one in tensors.items()}) == []
    assert (done.manifest.step, done.manifest.state, done.manifest.t, done.notes) == (5, STATE, source.t, ())
