"""The law: any legal layout gives the loss, the gradient norm and the parameters of one process."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.mpi_world import run_world
from tests.parallel.layouts import reference
from tests.train import matrix
from tests.train.matrix import CLIP, DECAY, GLOBAL_BATCH, LONG, LR, QUICK, SHAPES, STEPS

pytestmark = [pytest.mark.mpi, pytest.mark.slow]


@functools.cache
def expected(model: str, z_loss: float, documents: bool):
    """One process of plain torch on the whole batch: losses, norms, parameters."""
    batches = functools.partial(matrix.batches, documents=documents)
    one = reference(
        SHAPES[model],
        STEPS,
        clip=CLIP,
        lr=LR,
        decay=DECAY,
        optimizer="sgd",
        global_batch=GLOBAL_BATCH,
        batches=batches,
        z_loss=z_loss,
    )
    assert min(one.norms) > CLIP * 0.5  # clipping takes part
    return one.losses, one.norms, {name: p.detach() for name, p in one.module.named_parameters()}


@pytest.fixture(scope="module")
def quick():
    return run_world(matrix.everything, [case.name for case in QUICK], tasks_per_node=4, timeout_s=900).results


@pytest.fixture(scope="module")
def long():
    return run_world(matrix.everything, [case.name for case in LONG], tasks_per_node=8, timeout_s=1800).results


def check(case, world):
    losses, norms, parameters = expected(case.model, case.training.get("z_loss", 0.0), case.documents)
    inside = [answers[case.name] for answers in world if answers[case.name] is not None]
    assert len(inside) == case.ranks
    valid = [int((matrix.batches(n, case.shape, GLOBAL_BATCH).labels_NT != -100).sum()) for n in range(1, STEPS + 1)]
    seen = {name: torch.zeros_like(p, dtype=torch.bool) for name, p in parameters.items()}
    for got_losses, got_norms, parts, tokens in inside:
        assert got_losses == inside[0][0]  # all ranks know the same numbers
        assert got_losses[0] == pytest.approx(losses[0], rel=1e-6)
        assert got_norms[0] == pytest.approx(norms[0], rel=1e-6)
        assert got_losses == pytest.approx(losses, rel=1e-5)
        assert got_norms == pytest.approx(norms, rel=1e-5)
        if not case.documents:
            assert tokens == valid
        for name, offset, values in parts:
            place = tuple(slice(o, o + s) for o, s in zip(offset, values.shape, strict=True))
            torch.testing.assert_close(values, parameters[name][place], rtol=0, atol=1e-6)
            seen[name][place] = True
    assert all(mask.all() for mask in seen.values()), "some element of a parameter is on no rank"


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_layout_trains_as_one_process(case, quick):
    check(case, quick)


@pytest.mark.long
@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_larger_layout_trains_as_one_process(case, long):
    check(case, long)


def test_every_axis_schedule_mode_and_family_is_there():
    cases = QUICK + LONG
    assert len(QUICK) >= 40
    for axis in ("tp", "cp", "pp", "dp"):
        assert any(case.layout.get(axis, 1) > 1 for case in QUICK), axis
    schedules = {case.layout.get("schedule", "1f1b") for case in QUICK if case.layout.get("pp", 1) > 1}
    assert schedules == {"gpipe", "1f1b", "interleaved", "looped-bfs", "interleaved-zero-bubble", "zbv", "dualpipev"}
    assert {case.layout.get("dp_mode", "ddp") for case in QUICK} == {"ddp", "zero1", "zero2", "fsdp"}
    assert {case.layout.get("cp_mode", "ring") for case in QUICK if case.layout.get("cp", 1) > 1} == {"ring", "allgather", "ulysses"}
    assert {case.shape.family for case in cases} == {"llama", "qwen2", "qwen3", "gpt2"}
    assert {case.training.get("recompute", "none") for case in QUICK} == {"none", "full", "selective"}
