"""bf16 and fp16: modules compute in them, everything that adds up is fp32; bf16 on the way has the error that is stated."""

from __future__ import annotations

import pytest
import torch

from slurmtrain.parallel.data import DTYPES
from tests.mpi_world import gloo_group, run_world
from tests.parallel.toy import Rank, check_parts, expected_gradients, expected_values, tokens_of, toy

LAYOUTS = {
    "one": {},
    "ddp": {"dp": 2},
    "zero1": {"dp": 2, "dp_mode": "zero1"},
    "zero2": {"dp": 2, "dp_mode": "zero2"},
    "fsdp": {"dp": 2, "dp_mode": "fsdp"},
    "zero1 in two": {"dp": 4, "dp_mode": "zero1", "dp_shard": 2},
    "hsdp": {"dp": 4, "dp_mode": "fsdp", "dp_shard": 2},
}
REDUCED = {"ddp": {"dp": 4}, "zero1 in two": LAYOUTS["zero1 in two"], "fsdp": {"dp": 4, "dp_mode": "fsdp"}, "hsdp": LAYOUTS["hsdp"]}
PASSES, STEPS, LR = 3, 3, 0.05


def one_layout(layout, dtype):
    rank = Rank(layout, dtype=dtype, meta=layout.get("dp_mode") is not None)
    if not rank.inside:
        return None
    rank.gradients(0, PASSES)
    found = {"grads": rank.parts("grad")}
    rank.train(STEPS, PASSES, LR)
    found["values"] = rank.parts("tensor")
    with torch.no_grad():
        found["output"] = rank.stage(tokens_of(9, 0, 0)).item()
    if layout.get("dp_mode") not in ("zero2", "fsdp"):
        module = {name: p.detach() for name, p in rank.stage.named_parameters()}
        found["module"] = {p.dtype for p in module.values()}
        found["follows"] = all(torch.equal(module[name][slices(a, b)], v.to(DTYPES[dtype])) for name, a, b, _, v in found["values"])
    return found


def slices(start, stop):
    return tuple(slice(a, b) for a, b in zip(start, stop, strict=True))


def reduced(layout, dtype):
    rank = Rank(layout, dtype=dtype, reduce_dtype="bf16")
    rank.gradients(0, 1)
    return rank.parts("grad")


def everything():
    torch.set_num_threads(1)
    gloo_group()
    answers = {(name, dtype): one_layout(layout, dtype) for name, layout in LAYOUTS.items() for dtype in ("bf16", "fp16")}
    return answers | {name: reduced(layout, "fp32") for name, layout in REDUCED.items()}


@pytest.fixture(scope="module")
def world():
    return run_world(everything, tasks_per_node=4, timeout_s=240).results


CASES = [(name, dtype) for name in LAYOUTS for dtype in ("bf16", "fp16")]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[f"{name}-{dtype}" for name, dtype in CASES])
def test_gradients_of_passes_add_up_in_fp32(world, case):
    """Each pass's gradient is rounded once, by the pass itself. Added up in the dtype, they would be off by 1e-3 or 1e-4."""
    answers = [rank[case] for rank in world if rank[case] is not None]
    check_parts([a["grads"] for a in answers], expected_gradients(len(answers), PASSES, dtype=case[1]), 1e-6)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[f"{name}-{dtype}" for name, dtype in CASES])
def test_training_equals_a_plain_loop_over_fp32_masters(world, case):
    """Masters that differ in the last bit are rarely rounded to neighbours, whose gradients then differ as the dtype's numbers do."""
    answers = [rank[case] for rank in world if rank[case] is not None]
    masters, stage = expected_values(len(answers), PASSES, STEPS, LR, case[1])
    check_parts([a["values"] for a in answers], masters, 1e-5)
    assert {a["output"] for a in answers} == {answers[0]["output"]}
    assert answers[0]["output"] == pytest.approx(stage(tokens_of(9, 0, 0)).item(), rel=1e-3)
    assert all(a.get("module", {DTYPES[case[1]]}) == {DTYPES[case[1]]} for a in answers)
    assert all(a.get("follows", True) for a in answers)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("name", REDUCED)
def test_bf16_on_the_way_has_the_stated_error(world, name):
    """n shares: at most n 2^-9 of the sum of their magnitudes, element by element; and it does round."""
    shares = [expected_gradients_of(place) for place in range(4)]
    exact = {n: sum(share[n] for share in shares) for n in shares[0]}
    bound = {n: 4 * 2**-9 * sum(share[n].abs() for share in shares) * (1 + 2**-7) for n in shares[0]}
    largest = 0.0
    for rank in world:
        for part_name, start, stop, _, tensor in rank[name]:
            where = slices(start, stop)
            error = (tensor - exact[part_name][where]).abs()
            assert (error <= bound[part_name][where] + 1e-12).all(), part_name
            largest = max(largest, (error / exact[part_name].abs().max()).amax().item())
    assert largest > 1e-4


def expected_gradients_of(place):
    stage = toy()
    stage(tokens_of(0, place, 0)).backward()
    return {name: p.grad for name, p in stage.named_parameters()}
