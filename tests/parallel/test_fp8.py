"""8-bit products: rounding against the formats' own spacing, gradients by hand, layouts against one process, torchao as a peer."""

from __future__ import annotations

import importlib.util
import math
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from slurmtrain.errors import ConfigError
from slurmtrain.parallel.axis import Axis, Meter
from slurmtrain.parallel.fp8 import matmul_for, rounded, torchao_matmul
from tests.mpi_world import gloo_group, run_world

ALONE = SimpleNamespace(tp=None, cp=None)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ONE = torch.tensor(1.0)


def numbers(*shape, seed=0, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def scaled(x, dtype, largest):
    return rounded(x, largest / x.abs().max(), dtype)


@pytest.mark.parametrize(
    ("dtype", "table"),
    [
        # 16..32 goes in steps of 2 (three bits of fraction), ties to the even one; the largest is 448
        (E4M3, {1.0: 1.0, 1.05: 1.0, 1.07: 1.125, 17.0: 16.0, 19.0: 20.0, 17.1: 18.0, 500.0: 448.0, -1e6: -448.0, 2**-9: 2**-9}),
        # in steps of 4 (two bits); the largest is 57344
        (E5M2, {1.0: 1.0, 1.1: 1.0, 1.2: 1.25, 17.0: 16.0, 18.0: 16.0, 22.0: 24.0, 1e9: 57344.0, 2**-16: 2**-16}),
    ],
)
def test_rounds_to_the_values_of_the_format(dtype, table):
    assert rounded(torch.tensor(list(table)), ONE, dtype).tolist() == list(table.values())


def test_the_largest_element_is_kept_and_zeros_and_what_is_not_finite_come_through():
    matmul = matmul_for("fp8-emulated", ALONE)
    eye = torch.eye(4)
    x = numbers(3, 4, scale=1e-3)
    y = matmul(x, eye)
    at = x.abs().argmax()
    torch.testing.assert_close(y.flatten()[at], x.flatten()[at], rtol=1e-6, atol=0)
    assert (y - x).abs().max() <= x.abs().max() * 2**-4
    assert torch.equal(matmul(torch.zeros(3, 4), eye), torch.zeros(3, 4))
    for bad in (math.inf, math.nan):
        x[1, 2] = bad
        assert not matmul(x, eye).isfinite().all()


def test_native_is_torchs_linear():
    assert matmul_for("native", ALONE) is functional.linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_products_of_the_rounded_also_when_backward_runs_twice(dtype):
    matmul = matmul_for("fp8-emulated", ALONE)
    x, w = (numbers(2, 5, 32, seed=1).to(dtype).requires_grad_(), numbers(24, 32, seed=2).to(dtype).requires_grad_())
    g = numbers(2, 5, 24, seed=3).to(dtype)
    y = matmul(x, w)
    x_r, w_r, g_r = (
        scaled(v.detach().float(), kind, limit).to(dtype) for v, kind, limit in ((x, E4M3, 448), (w, E4M3, 448), (g, E5M2, 57344))
    )
    (dx,) = torch.autograd.grad(y, x, g, retain_graph=True)
    (dw,) = torch.autograd.grad(y, w, g)
    assert y.dtype == dtype
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 0.02, "atol": 0.05}
    torch.testing.assert_close(y, x_r @ w_r.T, **close)
    torch.testing.assert_close(dx, g_r @ w_r, **close)
    torch.testing.assert_close(dw, g_r.flatten(0, 1).T @ x_r.flatten(0, 1), **close)
    assert all(t.is_contiguous() for t in (y, dx, dw))


def test_operands_that_lie_across_memory_give_contiguous_results():
    matmul = matmul_for("fp8-emulated", ALONE)
    x = numbers(32, 5).T.requires_grad_()
    y = matmul(x, numbers(24, 32))
    (dx,) = torch.autograd.grad(y, x, numbers(24, 5).T)
    assert y.is_contiguous()
    assert dx.is_contiguous()


def test_torchaos_product_is_the_same():
    if importlib.util.find_spec("torchao") is None:
        pytest.skip("torchao is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its modules hold escapes that Python warns of
        theirs = torchao_matmul((), emulate=True)
    ours, results = matmul_for("fp8-emulated", ALONE), []
    for matmul in (ours, theirs):
        x, w = numbers(2, 5, 32, seed=1).requires_grad_(), numbers(48, 32, seed=2).requires_grad_()
        y = matmul(x, w)
        y.backward(numbers(2, 5, 48, seed=3))
        results.append((y.detach(), x.grad, w.grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device may have it")
def test_torchaos_product_is_refused_without_a_gpu():
    with pytest.raises(ConfigError, match=r'training.matmul = .torchao-fp8.: needs a GPU.*"fp8-emulated"') as refused:
        matmul_for("torchao-fp8", ALONE)
    assert "\n" not in str(refused.value)


WIDTH, INNER, TOKENS = 32, 48, 12


def two_layers(axes, tp, cp):
    """(loss, gradients) of x -> relu(x A) B with A cut by rows and B by columns over tp, tokens over cp, as the blocks do."""
    matmul = matmul_for("fp8-emulated", axes)

    def mine(x, dim, axis):
        return x if axis is None else x.chunk(axis.size, dim)[axis.index].contiguous()

    def summed(x, axis):
        return x if axis is None else axis.all_reduce(x.clone())

    x, target = (mine(numbers(TOKENS, WIDTH, seed=s), 0, cp) for s in (1, 4))
    a = mine(numbers(INNER, WIDTH, seed=2, scale=0.2), 0, tp).requires_grad_()
    b = mine(numbers(WIDTH, INNER, seed=3, scale=0.3), 1, tp).requires_grad_()
    x.requires_grad_()
    partial = matmul(functional.relu(matmul(x, a)), b)
    whole = summed(partial.detach(), tp)
    partial.backward(2 * (whole - target))  # of the summed squares
    loss = summed((whole - target).square().sum()[None], cp)
    return {"loss": loss, "x": summed(x.grad, tp), "a": summed(a.grad, cp), "b": summed(b.grad, cp)}


def on_two_ranks():
    group = gloo_group()
    axis = Axis("two", dist.group.WORLD, group.size, group.rank, Meter(torch.device("cpu"), active=False))
    return {
        "tp": two_layers(SimpleNamespace(tp=axis, cp=None), axis, None),
        "cp": two_layers(SimpleNamespace(tp=None, cp=axis), None, axis),
    }


@pytest.mark.mpi
def test_cut_over_ranks_it_rounds_as_one_process_does():
    ranks = run_world(on_two_ranks).results
    one = two_layers(ALONE, None, None)
    whole = {
        "tp": {"x": ranks[0]["tp"]["x"], **{n: torch.cat([r["tp"][n] for r in ranks], d) for n, d in (("a", 0), ("b", 1))}},
        "cp": {"x": torch.cat([r["cp"]["x"] for r in ranks]), "a": ranks[0]["cp"]["a"], "b": ranks[0]["cp"]["b"]},
    }
    for layout, gradients in whole.items():
        torch.testing.assert_close(ranks[0][layout]["loss"], one["loss"], rtol=1e-5, atol=0)
        for name, gradient in gradients.items():
            error = (gradient - one[name]).abs().max() / one[name].abs().max()
            assert error < 1e-5, (layout, name, error)
