"""Head and loss in chunks equal torch's cross-entropy over all logits, on one process and over a split vocabulary."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from slurmtrain.parallel.batch import IGNORED
from slurmtrain.parallel.loss import Head, linear_cross_entropy
from tests.mpi_world import gloo_group, run_world
from tests.parallel.layouts import whole_axis

N, V, D = 7, 9, 5
LABELS = {
    "all": [0, 2, 3, 5, 6, 8, 4],
    "some": [0, IGNORED, 3, IGNORED, IGNORED, 8, 4],
    "none": [IGNORED] * N,
    "one column's": [1] * N,
}
CASES = [(labels, scale, z_loss) for labels in LABELS for scale in (1.0, 1e4) for z_loss in (0.0, 1e-2)]


def inputs(scale, dtype=torch.float32):
    """x, weight and the scalar that comes back; with scale 1e4 exponentials of the logits overflow."""
    generator = torch.Generator().manual_seed(4)
    x, weight = torch.randn(N, D, generator=generator), torch.randn(V, D, generator=generator)
    return (x * scale).to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()


def expected_of(labels, scale, z_loss):
    """(loss, dx, dw) of 2 x the loss by torch, from all logits, in fp64."""
    x, weight = (t.detach().double().requires_grad_() for t in inputs(scale))
    label = torch.tensor(LABELS[labels])
    logits, valid = x @ weight.t(), label != IGNORED
    loss = functional.cross_entropy(logits, label, ignore_index=IGNORED, reduction="sum")
    loss = loss + z_loss * logits[valid].logsumexp(-1).square().sum()
    (2 * loss).backward()
    return loss.item(), x.grad, weight.grad


def close(ours, theirs):
    """To 1e-6 of the largest element."""
    return (ours.double() - theirs).abs().max() <= 1e-6 * theirs.abs().max()


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize(("labels", "scale", "z_loss"), CASES)
def test_equals_cross_entropy(labels, scale, z_loss, chunk):
    x, weight = inputs(scale)
    head = Head(0, V, None, chunk, z_loss)
    loss = linear_cross_entropy(x, weight, torch.tensor(LABELS[labels]), head)
    (2 * loss).backward()
    expected, dx, dw = expected_of(labels, scale, z_loss)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert close(x.grad, dx)
    assert close(weight.grad, dw)
    with torch.no_grad():
        assert linear_cross_entropy(x, weight, torch.tensor(LABELS[labels]), head).item() == loss.item()


def test_backward_may_run_twice_and_by_halves():
    """Zero-bubble schedules ask for the input's gradient first and for the weight's later."""
    x, weight = inputs(1.0)
    loss = linear_cross_entropy(x, weight, torch.tensor(LABELS["some"]), Head(0, V, None, 2)) * 2
    (dx,) = torch.autograd.grad(loss, x, retain_graph=True)
    (dw,) = torch.autograd.grad(loss, weight, retain_graph=True)
    loss.backward()
    _, *expected = expected_of("some", 1.0, 0.0)
    for grad, again, theirs in zip((dx, dw), (x.grad, weight.grad), expected, strict=True):
        assert torch.equal(grad, again)
        assert close(grad, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_precision_adds_up_in_fp32(dtype):
    """As far from fp64 as the inputs' own rounding is, and no farther with many chunks."""
    for chunk in (1, 7):
        x, weight = inputs(1.0, dtype)
        loss = linear_cross_entropy(x, weight, torch.tensor(LABELS["all"]), Head(0, V, None, chunk))
        (2 * loss).backward()
        expected, dx, dw = expected_of("all", 1.0, 0.0)
        assert (loss.dtype, x.grad.dtype, weight.grad.dtype) == (torch.float32, dtype, dtype)
        assert loss.item() == pytest.approx(expected, rel=1e-2)
        assert (x.grad.double() - dx).abs().max() < 2e-2 * dx.abs().max()
        assert (weight.grad.double() - dw).abs().max() < 2e-2 * dw.abs().max()


class Seen(TorchDispatchMode):
    """Elements of the largest tensor that any operation gave, and the number of matrix products."""

    largest = 0
    products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.products += "mm" in str(func)
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return out


def test_no_tensor_is_as_large_as_all_logits():
    """512 tokens over 1000 words: chunks of 64 logits, the weight's gradient, and nothing above them."""
    x, weight = torch.randn(512, 8, requires_grad=True), torch.randn(1000, 8, requires_grad=True)
    label = torch.randint(0, 1000, (512,))
    with Seen() as seen:
        linear_cross_entropy(x, weight, label, Head(0, 1000, None, 64)).backward()
    assert seen.largest == 64 * 1000
    assert seen.products == 3 * 8
    with Seen() as naive:
        functional.cross_entropy(x @ weight.t(), label).backward()
    assert naive.largest == 512 * 1000


def test_evaluation_makes_no_gradients():
    x, weight = torch.randn(512, 8, requires_grad=True), torch.randn(1000, 8, requires_grad=True)
    with Seen() as seen, torch.no_grad():
        loss = linear_cross_entropy(x, weight, torch.randint(0, 1000, (512,)), Head(0, 1000, None, 64))
    assert not loss.requires_grad
    assert seen.products == 8


def split(cases):
    """Each case with three columns a rank of four: the last rank has none, and its weight is padding that must not matter."""
    gloo_group()
    tp = whole_axis()
    start, answers = tp.index * 3, {}
    for labels, scale, z_loss in cases:
        x, whole = inputs(scale)
        real = max(0, min(3, V - start))
        weight = torch.full((3, D), torch.nan)
        weight[:real] = whole.detach()[start : start + real]
        weight.requires_grad_()
        loss = linear_cross_entropy(x, weight, torch.tensor(LABELS[labels]), Head(start, real, tp, 3, z_loss))
        (2 * loss).backward()
        dist.all_reduce(x.grad)
        answers[labels, scale, z_loss] = loss.item(), x.grad, weight.grad
    return answers


@pytest.fixture(scope="module")
def ranks():
    return run_world(split, CASES, tasks_per_node=4).results


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_split_vocabulary_equals_cross_entropy(ranks, case):
    expected, dx, dw = expected_of(*case)
    losses = [rank[case][0] for rank in ranks]
    assert losses == [losses[0]] * 4
    assert losses[0] == pytest.approx(expected, rel=1e-6)
    assert all(close(rank[case][1], dx) for rank in ranks)
    rows = torch.cat([rank[case][2] for rank in ranks])
    assert close(rows[:V], dw)
    assert rows[V:].abs().max() == 0
