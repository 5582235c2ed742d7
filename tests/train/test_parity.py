"""The law: every layout trains as one process does, also when the layout changes on the way; a resumed one repeats bit for bit."""

from __future__ import annotations

import pytest
import torch

from slurmtrain.boxes import Box, Part
from slurmtrain.checkpoint.state import load_checkpoint
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_verified
from tests.mpi_world import run_world
from tests.parallel import layouts
from tests.parallel.layouts import reference
from tests.train.worlds import LR, everything

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

MODEL = layouts.MODEL.model_copy(update={"layers": 2})
STEPS, CLIP, EACH = 20, 0.1, 3
"""Clipping is active in nearly every step at 0.1, as in torchtitan#596."""
LAYOUTS = {
    "tp2": {"tp": 2, "micro_batch": 4},
    "pp2": {"pp": 2, "micro_batch": 2},
    "dp2 accumulates": {"dp": 2},
    "dp4 fsdp": {"dp": 4, "mode": "fsdp", "micro_batch": 2},
    "tp2 pp2": {"tp": 2, "pp": 2, "micro_batch": 4},
    "tp2 dp2 fsdp": {"tp": 2, "dp": 2, "mode": "fsdp", "micro_batch": 4},
}
CHAIN = [
    {"tp": 2, "pp": 2, "micro_batch": 4},
    {"dp": 4, "mode": "fsdp", "micro_batch": 2},
    {"tp": 2, "dp": 2, "micro_batch": 4},
    {"pp": 2, "dp": 2, "mode": "fsdp", "micro_batch": 2},
]
REPEATS = {"dp4": {"dp": 4, "micro_batch": 2}, "dp4-fsdp": {"dp": 4, "mode": "fsdp", "micro_batch": 2}, "tp2-pp2": CHAIN[0]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parity")


@pytest.fixture(scope="module")
def world(folder):
    spec = {"model": MODEL, "layouts": LAYOUTS, "steps": STEPS, "clip": CLIP, "chain": CHAIN, "each": EACH, "repeats": REPEATS}
    return run_world(everything, spec | {"folder": str(folder)}, tasks_per_node=4, timeout_s=300).results


@pytest.fixture(scope="module")
def expected():
    losses, norms, _, llama = reference(MODEL, STEPS, clip=CLIP, lr=LR)
    assert min(norms) > CLIP
    return losses, norms, llama


def close(results, expected, steps):
    losses, norms, _ = expected
    assert [loss for loss, _ in results] == pytest.approx(losses[:steps], rel=1e-5)
    assert [norm for _, norm in results] == pytest.approx(norms[:steps], rel=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_trains_as_one_process(world, expected, layout):
    inside = [answers[layout] for answers, *_ in world if answers[layout][0] is not None]
    assert len(inside) >= 2
    for results, copies in inside:
        assert results == inside[0][0]  # all ranks know the same numbers
        assert copies
        close(results, expected, STEPS)


def test_run_goes_on_under_other_layouts(world, folder):
    steps = EACH * len(CHAIN)
    losses, norms, _, llama = reference(MODEL, steps, clip=CLIP, lr=LR)
    for _, chained, *_ in world:
        close(chained, (losses, norms, llama), steps)
    found = newest_verified(RunDir(folder / "chain").checkpoints)
    assert found.step == steps
    for name, parameter in llama.named_parameters():
        shape = tuple(parameter.shape)
        whole = torch.full(shape, torch.nan)
        part = Part(f"model/{name}", shape, Box((0,) * len(shape), shape), tuple((0, n) for n in shape))
        load_checkpoint(found.folder, found.manifest, [(part, whole)])
        torch.testing.assert_close(whole, parameter.detach(), rtol=0, atol=LR * 1e-2)


@pytest.mark.parametrize("layout", REPEATS)
def test_resume_repeats_bit_for_bit(world, layout):
    """Of four replicas too: a ring's rounding depends on where a number lies, so buckets must not move between starts."""
    for _, _, resumed, _ in world:
        straight, through_checkpoint = resumed[layout]
        assert through_checkpoint == straight


def test_what_one_rank_knows_all_act_on_at_the_same_step(world):
    """A stop, another owner, a number that is not finite: nobody trains on alone."""
    for *_, heard in world:
        assert heard == [("requeue", False), (None, True), ("step 3", True)]
