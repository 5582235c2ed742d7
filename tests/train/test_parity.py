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

MODEL = layouts.MODEL
STEPS, CLIP, EACH = 20, 0.1, 3
"""Clipping is active in nearly every step at 0.1, as in torchtitan#596."""
LAYOUTS = {
    "tp2 cp2": {"tp": 2, "cp": 2, "micro_batch": 4},
    "pp2 dp2 zero1, zbv": {"pp": 2, "dp": 2, "dp_mode": "zero1", "schedule": "zbv"},
    "dp2 accumulates": {"dp": 2},
    "dp4 fsdp": {"dp": 4, "dp_mode": "fsdp", "micro_batch": 2},
}
CHAIN = [
    {"tp": 2, "pp": 2, "micro_batch": 4},
    {"dp": 4, "dp_mode": "fsdp", "micro_batch": 2},
    {"tp": 4, "micro_batch": 4},
    {"pp": 2, "dp": 2, "dp_mode": "zero1", "schedule": "interleaved"},
    {"cp": 2, "dp": 2, "dp_mode": "fsdp", "dp_shard": 1, "micro_batch": 2},
]
DROPPING = layouts.changed(MODEL, dropout=0.1, attention_dropout=0.1)
REPEATS = {
    "dp4": ({"dp": 4, "micro_batch": 2}, None, None),
    "dp4 zero1": ({"dp": 4, "dp_mode": "zero1", "micro_batch": 2}, None, {"dtype": "bf16"}),
    "dp4 fsdp": ({"dp": 4, "dp_mode": "fsdp", "micro_batch": 2}, None, None),
    "tp2 pp2, dropout": ({"tp": 2, "pp": 2, "micro_batch": 4}, DROPPING, {"recompute": "full"}),
    "cp2 dp2, bf16": ({"cp": 2, "dp": 2, "micro_batch": 4}, None, {"dtype": "bf16"}),
}
"""Layout, model (None: as the others), training."""
OVERFLOWS = {
    "tp4": {"tp": 4, "micro_batch": 4},
    "pp4": {"pp": 4, "stages": (1, 1, 1, 1)},
    "dp4": {"dp": 4},
    "dp2 fsdp": {"dp": 2, "dp_mode": "fsdp"},
    "cp4": {"cp": 4, "micro_batch": 4},
    "pp2 dp2 zero1": {"pp": 2, "dp": 2, "dp_mode": "zero1"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parity")


@pytest.fixture(scope="module")
def world(folder):
    spec = {"model": MODEL, "layouts": LAYOUTS, "steps": STEPS, "clip": CLIP, "chain": CHAIN, "each": EACH}
    spec |= {"repeats": REPEATS, "overflows": OVERFLOWS, "folder": str(folder)}
    return run_world(everything, spec, tasks_per_node=4, timeout_s=600).results


@pytest.fixture(scope="module")
def expected():
    one = reference(MODEL, STEPS, clip=CLIP, lr=LR)
    assert min(one.norms) > CLIP
    return one


def close(results, expected, steps):
    losses, norms = expected.losses, expected.norms
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
    one = reference(MODEL, steps, clip=CLIP, lr=LR)
    for _, chained, *_ in world:
        close(chained, one, steps)
    found = newest_verified(RunDir(folder / "chain").checkpoints)
    assert found.step == steps
    for name, parameter in one.module.named_parameters():
        shape = tuple(parameter.shape)
        whole = torch.full(shape, torch.nan)
        part = Part(f"model/{name}", shape, Box((0,) * len(shape), shape), tuple((0, n) for n in shape))
        load_checkpoint(found.folder, found.manifest, [(part, whole)])
        torch.testing.assert_close(whole, parameter.detach(), rtol=0, atol=LR * 1e-2)


@pytest.mark.parametrize("layout", REPEATS)
def test_resume_repeats_bit_for_bit(world, layout):
    """Of four replicas too: a ring's rounding depends on where a number lies, so buckets must not move between starts."""
    for _, _, resumed, *_ in world:
        straight, through_checkpoint = resumed[layout]
        assert through_checkpoint == straight


def test_what_one_rank_knows_all_act_on_at_the_same_step(world):
    """A stop, another owner, a number that is not finite: nobody trains on alone."""
    for *_, heard, _ in world:
        assert heard == [("requeue", False), (None, True), ("step 3", True)]


@pytest.mark.parametrize("layout", OVERFLOWS)
def test_overflow_on_one_rank_is_skipped_by_all(world, layout):
    """Scale 1024, doubled after 2 good steps: good, overflow (halved), good, good (doubled), good; 4 updates, nobody hangs."""
    answers = [found[layout] for *_, found in world if found[layout] is not None]
    for steps, updates, copies in answers:
        assert steps == answers[0][0]
        assert [skipped for skipped, *_ in steps] == [False, True, False, False, False]
        assert [scale for _, scale, _ in steps] == [1024.0, 1024.0, 512.0, 512.0, 1024.0]
        assert updates == 4
        assert copies
