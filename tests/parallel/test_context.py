"""Attention over a context-parallel group equals attention of one process over the whole sequence, values and gradients."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from slurmtrain.models.attention import Whole
from slurmtrain.parallel.axis import Axis, Meter
from slurmtrain.parallel.blockwise import EfficientCuda, FlashCpu, FlashCuda, Plain, blockwise_for, merge
from slurmtrain.parallel.context import attention_over, cut, positions
from slurmtrain.parallel.ring import ring_attention
from slurmtrain.parallel.ulysses import Ulysses
from tests.mpi_world import gloo_group, run_world

B, T, E = 2, 16, 8
DOCUMENTS = torch.tensor([[0] * 3 + [1] * 6 + [2] * 7, [0] * 16])
HEADS = {"full": (8, 8), "grouped": (8, 4), "one": (8, 1), "three": (12, 3)}
CASES = [
    ("ring", "full", {}),
    ("ring", "grouped", {}),
    ("ring", "one", {}),
    ("ring", "grouped", {"plain": True}),
    ("ring", "grouped", {"dtype": torch.bfloat16}),
    ("allgather", "full", {}),
    ("allgather", "grouped", {}),
    ("allgather", "grouped", {"window": 5}),
    ("allgather", "grouped", {"documents": True}),
    ("allgather", "grouped", {"documents": True, "window": 3}),
    ("allgather", "grouped", {"dtype": torch.bfloat16}),
    ("ulysses", "full", {}),
    ("ulysses", "grouped", {}),
    ("ulysses", "one", {}),
    ("ulysses", "three", {}),
    ("ulysses", "grouped", {"window": 5}),
    ("ulysses", "grouped", {"documents": True}),
    ("ulysses", "grouped", {"documents": True, "window": 3}),
    ("ulysses", "grouped", {"dtype": torch.bfloat16}),
]
TABLE = {  # pieces of T / 8 at w = 4 and T / 4 at w = 2: head and tail, or neighbours
    ("ring", 4): [[0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]],
    ("ring", 2): [[0, 1, 2, 3, 12, 13, 14, 15], [4, 5, 6, 7, 8, 9, 10, 11]],
    ("ulysses", 4): [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
    ("ulysses", 2): [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]],
}
TABLE |= {("allgather", w): TABLE["ring", w] for w in (2, 4)}


def name_of(case):
    mode, heads, how = case
    return " ".join([mode, heads, *(f"{k}={v}" for k, v in how.items())])


def inputs_of(heads, dtype=torch.float32):
    """q, k, v over the whole sequence, and the gradient of what comes out."""
    generator, (q_heads, kv_heads) = torch.Generator().manual_seed(3), HEADS[heads]
    return [torch.randn(B, h, T, E, generator=generator).to(dtype) for h in (q_heads, kv_heads, kv_heads, q_heads)]


def expected_of(case):
    """Out and gradients of q, k, v: torch's attention with the mask written out."""
    _, heads, how = case
    *qkv, grad = inputs_of(heads, how.get("dtype", torch.float32))
    leaves = [x.requires_grad_() for x in qkv]
    place = torch.arange(T)
    distance = place[:, None] - place[None, :]
    mask = (distance >= 0) & (distance < how.get("window", T))
    if how.get("documents"):
        mask = mask & (DOCUMENTS[:, None, :, None] == DOCUMENTS[:, None, None, :])
    causal = {"is_causal": True} if mask.ndim == 2 and "window" not in how else {"attn_mask": mask}
    out = functional.scaled_dot_product_attention(*leaves, enable_gqa=True, **causal)
    out.backward(grad)
    return [out.detach(), *(x.grad for x in leaves)]


def one_case(case, cp):
    """This rank's out and gradients, by the first backward and by a second one over the same graph."""
    mode, heads, how = case
    rows = TABLE[mode, cp.size][cp.index]
    *qkv, grad = (x[:, :, rows] for x in inputs_of(heads, how.get("dtype", torch.float32)))
    leaves = [x.clone().requires_grad_() for x in qkv]
    attend = attention_over(cp, mode, length=T, window=how.get("window"))
    mask = attend.mask(DOCUMENTS[:, rows] if how.get("documents") else None)
    out = ring_attention(*leaves, cp, Plain()) if how.get("plain") else attend(*leaves, mask, 0.0)
    passes = [torch.autograd.grad(out, leaves, grad, retain_graph=True) for _ in range(2)]
    return [out.detach(), *passes[0]], all(torch.equal(a, b) for a, b in zip(*passes, strict=True))


def identity(cp):
    """What Ulysses gives where attention gives its queries back, and with the values."""
    q, k, v, _ = (x[:, :, TABLE["ulysses", cp.size][cp.index]] for x in inputs_of("full"))

    class First(Whole):
        def __call__(self, q, k, v, mask, dropout):
            assert q.shape == k.shape == v.shape == (B, 8 // cp.size, T, E)
            return q

    class Last(Whole):
        def __call__(self, q, k, v, mask, dropout):
            return v

    return torch.equal(Ulysses(cp, First())(q, k, v, None, 0.0), q), torch.equal(Ulysses(cp, Last())(q, k, v, None, 0.0), v)


def wire(cp):
    """Shapes that the ring sends for grouped keys: forward, then backward."""
    sent = []

    class Watched(Axis):
        def start_shift(self, x):
            sent.append(tuple(x.shape))
            return super().start_shift(x)

    q, k, v, grad = (x[:, :, : T // cp.size] for x in inputs_of("one"))
    ring_attention(q.requires_grad_(), k, v, Watched(cp.name, cp.group, cp.size, cp.index, cp.meter), FlashCpu()).backward(grad)
    return sent


def dropped(cp):
    """Two outputs with attention dropout, and one after the seed of the first."""
    q, k, v, _ = (x[:, :, TABLE["ulysses", cp.size][cp.index]] for x in inputs_of("full"))
    attend = attention_over(cp, "ulysses", length=T)
    outs = []
    for seed in (cp.index, 9 + cp.index, cp.index):
        torch.manual_seed(seed)
        outs.append(attend(q, k, v, None, 0.5))
    return outs


def all_cases():
    torch.set_num_threads(1)
    world, meter = gloo_group(), Meter(torch.device("cpu"))
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    four = Axis("cp", dist.group.WORLD, 4, world.rank, meter)
    two = Axis("cp", pairs[world.rank // 2], 2, world.rank % 2, meter)
    answers = {}
    for cp in (four, two):
        answers |= {(cp.size, name_of(case)): one_case(case, cp) for case in CASES}
        answers |= {(cp.size, "identity"): identity(cp), (cp.size, "dropped"): dropped(cp), (cp.size, "wire"): wire(cp)}
    return answers | {"waited": meter.take()}


@pytest.fixture(scope="module")
def world():
    return run_world(all_cases, tasks_per_node=4, timeout_s=240).results


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_equals_one_process(world, case, size):
    mode, _, how = case
    tolerance = 2e-2 if how.get("dtype") == torch.bfloat16 else 1e-6
    for index, rank in enumerate(world):
        ours, again = rank[size, name_of(case)]
        assert again, "a second backward gives other gradients"
        for what, mine, whole in zip(("out", "q", "k", "v"), ours, expected_of(case), strict=True):
            theirs = whole[:, :, TABLE[mode, size][index % size]]
            assert mine.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, msg=lambda text, what=what: f"{what}: {text}")


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("heads", ["full", "grouped"])
def test_ulysses_is_bitwise(world, size, heads):
    """Each head is computed as one process does; of the gradients too where no head of keys is shared by ranks."""
    case = ("ulysses", heads, {})
    for index, rank in enumerate(world):
        for mine, whole in zip(rank[size, name_of(case)][0], expected_of(case), strict=True):
            assert torch.equal(mine, whole[:, :, TABLE["ulysses", size][index % size]])


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_identity_through_ulysses(world, size):
    """DeepSpeed issue 5664: the second exchange put heads and positions in the wrong places."""
    assert [rank[size, "identity"] for rank in world] == [(True, True)] * 4


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_the_ring_sends_grouped_keys(world, size):
    """One head of keys for eight of queries: one travels; size - 1 steps forward, and back with size of the gradients."""
    for rank in world:
        assert rank[size, "wire"] == [(2, B, 1, T // size, E)] * (size - 1 + size - 1 + size)


@pytest.mark.mpi
@pytest.mark.slow
def test_ulysses_has_dropout(world):
    for rank in world:
        first, second, again = rank[4, "dropped"]
        assert torch.equal(first, again)
        assert not torch.equal(first, second)


@pytest.mark.mpi
@pytest.mark.slow
def test_waiting_is_metered(world):
    for rank in world:
        assert set(rank["waited"]) == {"cp"}
        assert rank["waited"]["cp"] > 0


@pytest.mark.parametrize(("mode", "size"), TABLE)
def test_positions(mode, size):
    assert [positions(T, size, index, mode).tolist() for index in range(size)] == TABLE[mode, size]


@pytest.mark.parametrize("mode", ["ring", "allgather", "ulysses"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_target_of_each_token_is_the_one_after(mode, size):
    """Also of the last of each piece: labels are made before the cut."""
    text = torch.arange(100, 100 + T + 1).repeat(2, 1)
    tokens, labels = text[:, :-1], text[:, 1:]
    seen = []
    for index in range(size):
        mine, targets = (cut(x, size, index, mode) for x in (tokens, labels))
        assert size == 1 or mine.is_contiguous()
        assert torch.equal(targets, mine + 1)
        seen += mine[1].tolist()
    assert sorted(seen) == list(range(100, 100 + T))


def test_alone_there_is_nothing_to_cut():
    assert positions(6, 1, 0, "ring").tolist() == list(range(6))
    assert attention_over(None, "ring", length=6, window=3) == Whole(3)


@pytest.mark.parametrize("kernel", [Plain(), FlashCpu()], ids=["plain", "flash"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_halves_of_the_keys_put_together(kernel, dtype):
    """Values and gradients against softmax written out in fp64."""
    q, k, v, grad = inputs_of("grouped", dtype)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    wide_k, wide_v = (x.repeat_interleave(2, 1) for x in leaves[1:])
    scores = leaves[0] @ wide_k.mT / math.sqrt(E)
    expected = scores.softmax(-1) @ wide_v
    expected.backward(grad.double())
    halves = [(k[:, :, :10], v[:, :, :10]), (k[:, :, 10:], v[:, :, 10:])]
    out, lse = kernel.forward(q, *halves[0], causal=False)
    out = out.float()
    merge(out, lse, *kernel.forward(q, *halves[1], causal=False))
    grads = [kernel.backward(grad, (q, *half), (out.to(dtype), lse), causal=False) for half in halves]
    ours = [out, grads[0][0] + grads[1][0], *(torch.cat([grads[0][i], grads[1][i]], 2) for i in (1, 2))]
    tolerance = 1e-6 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(lse, scores.detach().logsumexp(-1).float(), rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=1e-6)
    for mine, theirs in zip(ours, (expected.detach(), *(x.grad for x in leaves)), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance)


def test_the_kernel_of_each_device_and_dtype():
    from torch._subclasses.fake_tensor import FakeTensorMode

    def chosen(device, dtype, length=128, width=64):
        q = torch.empty(1, 4, length, width, dtype=dtype, device=device)
        return type(blockwise_for(q, q))

    assert chosen("cpu", torch.bfloat16) is FlashCpu
    with FakeTensorMode():
        assert chosen("cuda", torch.bfloat16) is FlashCuda
        assert chosen("cuda", torch.float16, width=12) is Plain
        assert chosen("cuda", torch.float16, width=512) is Plain
        assert chosen("cuda", torch.float32) is EfficientCuda
        assert chosen("cuda", torch.float32, length=100) is Plain


@pytest.mark.parametrize(("kernel", "dtype"), [(FlashCuda(), torch.bfloat16), (EfficientCuda(), torch.float32)], ids=["flash", "efficient"])
def test_gpu_kernels_are_called_as_torch_declares_them(kernel, dtype):
    """Shapes of results and gradients, grouped keys too; numbers need a GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q = torch.empty(2, 8, 128, 64, dtype=dtype, device="cuda")
        k = torch.empty(2, 4, 64, 64, dtype=dtype, device="cuda")
        out, lse = kernel.forward(q, k, k, causal=False)
        assert (out.shape, lse.shape, lse.dtype) == (q.shape, q.shape[:3], torch.float32)
        grads = kernel.backward(out, (q, k, k), (out, lse), causal=False)
        assert [x.shape for x in grads] == [q.shape, k.shape, k.shape]
