"""Training with emulated 8-bit products under layouts that cut operands or split the backward pass, against one process."""

from __future__ import annotations

import pytest

from tests.mpi_world import run_world
from tests.parallel.layouts import MODEL
from tests.train.worlds import Trainer, start

LAYOUTS = {
    4: {"tp": {"tp": 2}, "cp": {"cp": 2}, "pp": {"pp": 2}},
    2: {"zero bubble": {"pp": 2, "schedule": "interleaved-zero-bubble"}, "fsdp": {"dp": 2, "dp_mode": "fsdp"}},
}
"""By micro-batch: a scale is of one micro-batch, so that only layouts with equal ones round alike."""


def trained(layout, matmul="fp8-emulated"):
    return Trainer(MODEL, layout, 1.0, {"matmul": matmul}).train(1, 5)


def on_two_ranks():
    start()
    told = {}
    for micro_batch, layouts in LAYOUTS.items():
        one = trained({"micro_batch": micro_batch})
        for name, layout in layouts.items():
            told[name] = one, trained({"micro_batch": micro_batch, **layout})
    return told | {"native": trained({"micro_batch": 4}, "native")}


@pytest.fixture(scope="module")
def told():
    return run_world(on_two_ranks, timeout_s=300).results[0]  # rank 1 is outside the layouts of one process


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for layouts in LAYOUTS.values() for name in layouts])
def test_rounds_as_one_process_does(told, name):
    one, many = told[name]
    for (loss, norm), (expected_loss, expected_norm) in zip(many, one, strict=True):
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        assert norm == pytest.approx(expected_norm, rel=1e-4)


@pytest.mark.mpi
@pytest.mark.slow
def test_is_near_the_native_product_and_not_the_same(told):
    for (loss, _), (native, _) in zip(told["tp"][0], told["native"], strict=True):
        assert loss != native
        assert loss == pytest.approx(native, rel=5e-3)
