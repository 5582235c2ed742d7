"""Recomputed layers give the same bits with less memory, under every arrangement that wraps layers."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from slurmtrain.config.model import ModelConfig
from slurmtrain.parallel.axis import Axis, Meter
from slurmtrain.parallel.context import attention_over, cut, positions
from slurmtrain.parallel.decoder import Stage
from slurmtrain.parallel.parts import stage_layouts
from slurmtrain.parallel.recompute import recompute
from tests.mpi_world import gloo_group, run_world

T = 16
MODEL = ModelConfig(layers=4, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=64)
DROPPING = MODEL.model_copy(update={"dropout": 0.2, "attention_dropout": 0.1})
MODES = ("none", "selective", "full")


def stage_of(model, mode="none", every=1, *, tp=None, cp=None, cp_mode="ring", overlap=True):
    """All layers, with values that depend on the rank alone."""
    layers, size, index = range(model.layers), tp.size if tp else 1, tp.index if tp else 0
    layouts = stage_layouts(model, layers, first=True, last=True, index=index, size=size)
    attend = attention_over(cp, cp_mode, length=T)
    stage = Stage(model, layers, layouts, first=True, last=True, tp=tp, attend=attend, overlap=overlap)
    generator = torch.Generator().manual_seed(index)
    with torch.no_grad():
        for parameter in stage.parameters():
            parameter.normal_(0.0, 0.1, generator=generator)
    stage.prepare(positions(T, cp.size, cp.index, cp_mode) if cp else positions(T, 1, 0, cp_mode))
    recompute(stage, mode, every)
    return stage


def batch(cp=None, cp_mode="ring"):
    text = torch.randint(0, 64, (2, T + 1), generator=torch.Generator().manual_seed(5))
    pair = text[:, :-1], text[:, 1:]
    return tuple(cut(x, cp.size, cp.index, cp_mode) for x in pair) if cp else pair


def step(stage, tokens, labels):
    """Loss and all gradients, and the random number after."""
    torch.manual_seed(3)
    stage.zero_grad()
    loss = stage(tokens, labels)
    loss.backward()
    return [loss.detach(), *(p.grad for p in stage.parameters()), torch.rand(1)]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


class Calls(TorchDispatchMode):
    """How often each operation ran, and how much memory of floating-point results is still held, `own` storages apart."""

    def __init__(self, own=()):
        super().__init__()
        self.counts, self._made, self._own = Counter(), [], {x.untyped_storage()._cdata for x in own}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func._schema.name.split("::")[1]] += 1
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        self._made += [(StorageWeakRef(x.untyped_storage()), x.untyped_storage().nbytes()) for x in tensors]
        return out

    def held_bytes(self):
        return sum({ref.cdata: size for ref, size in self._made if ref.cdata not in self._own and not ref.expired()}.values())


def held_by(make):
    """Bytes that each layer after the first two adds to what is held between forward and backward; `make` takes the number of layers."""
    held = []
    for layers in (2, 4):
        stage = make(layers)
        stage(*batch())  # what a compiler makes goes with it
        with Calls(stage.parameters()) as calls:
            loss = stage(*batch())
        held.append(calls.held_bytes())
        del loss
    return (held[1] - held[0]) / 2


def held_per_layer(mode):
    return held_by(lambda layers: stage_of(MODEL.model_copy(update={"layers": layers}), mode))


def in_two_halves(stage):
    """Gradients of the layers as zero-bubble schedules make them: of the input first, of the weights later."""
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    size = stage.tp.size if stage.tp else 1
    x = torch.randn(T // size, 2, 32, generator=torch.Generator().manual_seed(8)).requires_grad_()
    torch.manual_seed(3)
    y = x
    for layer in stage.layers.values():
        y = layer(y, stage.rotary, None)
    loss = (y * torch.arange(32)).sum()
    grads, groups = stage_backward_input([loss], None, [x], stage.layers.parameters())
    stage_backward_weight(stage.layers.parameters(), groups)
    return [*grads, *(p.grad for p in stage.layers.parameters())]


def at_once(stage):
    """The same gradients of one backward pass."""
    size = stage.tp.size if stage.tp else 1
    x = torch.randn(T // size, 2, 32, generator=torch.Generator().manual_seed(8)).requires_grad_()
    torch.manual_seed(3)
    y = x
    for layer in stage.layers.values():
        y = layer(y, stage.rotary, None)
    (y * torch.arange(32)).sum().backward()
    return [x.grad, *(p.grad for p in stage.layers.parameters())]


@pytest.mark.parametrize("model", [MODEL, DROPPING], ids=["plain", "dropout"])
@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_same_bits(model, mode, every):
    """Masks of dropout too, and the generator ends where it would."""
    assert same(step(stage_of(model, mode, every), *batch()), step(stage_of(model), *batch()))


def test_names_stay():
    assert [[name for name, _ in stage_of(MODEL, mode).named_parameters()] for mode in MODES[1:]] == [
        [name for name, _ in stage_of(MODEL).named_parameters()]
    ] * 2


def test_every_other_layer():
    """Products of a layer run again: four a layer, the last of which nothing waits for."""
    counts = []
    for mode, every in (("none", 1), ("full", 1), ("full", 2)):
        stage = stage_of(MODEL, mode, every)
        with Calls() as calls:
            step(stage, *batch())
        counts.append(calls.counts["mm"])
    assert [count - counts[0] for count in counts[1:]] == [4 * 3, 2 * 3]


def test_selective_runs_no_dear_operation_again():
    counts = []
    for mode in ("none", "selective"):
        stage = stage_of(MODEL, mode)
        with Calls() as calls:
            step(stage, *batch())
        counts.append(calls.counts)
    for name in ("mm", "_scaled_dot_product_flash_attention_for_cpu"):
        assert counts[0][name] == counts[1][name] > 0
    assert counts[1]["silu"] == 2 * counts[0]["silu"] == 8


def test_memory_between_forward_and_backward():
    """Closed form: full holds a layer's input [T, B, D]; selective besides it q, k, v, gate and up, two sums, attention and its lse."""
    tokens, word = T * 2, 4
    full = tokens * 32 * word
    kept = tokens * (64 + 96 + 32 + 32 + 32 + 4) * word
    assert held_per_layer("full") == full
    assert held_per_layer("selective") == full + kept
    assert held_per_layer("none") > 1.5 * (full + kept)


@pytest.mark.parametrize("mode", MODES)
def test_backward_in_two_halves(mode):
    """Zero-bubble schedules run a layer's backward pass twice, and what is made again twice."""
    assert same(in_two_halves(stage_of(DROPPING, mode, overlap=False)), at_once(stage_of(DROPPING)))


ARRANGEMENTS = {
    "tp": {"tp": True},
    "tp apart": {"tp": True, "overlap": False},
    "ring": {"cp_mode": "ring"},
    "allgather": {"cp_mode": "allgather"},
    "ulysses": {"cp_mode": "ulysses"},
}
COLLECTIVES = ("_allgather_base_", "_reduce_scatter_base_", "alltoall_base_", "send")


def sharded(mode, mesh):
    """Loss and this rank's gradients under FSDP2, weights gathered anew for the backward pass, in bf16."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    stage = stage_of(MODEL.model_copy(update={"dropout": 0.2}), mode)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for module in (*stage.layers.values(), stage):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    loss = stage(*batch())
    loss.backward()
    return [loss.detach(), *(p.grad.to_local() for p in stage.parameters())]


def all_arrangements():
    """{arrangement: (selective and full give the bits of none, collectives of a step by mode)}, and whether FSDP2 does."""
    from torch.distributed.device_mesh import DeviceMesh

    torch.set_num_threads(1)
    axis = Axis("axis", dist.group.WORLD, 2, gloo_group().rank, Meter(torch.device("cpu")))
    answers = {}
    for name, how in ARRANGEMENTS.items():
        cp, cp_mode = (axis, how["cp_mode"]) if "cp_mode" in how else (None, "ring")
        stages = {mode: stage_of(MODEL, mode, cp=cp, **{**how, "tp": axis if "tp" in how else None}) for mode in MODES}
        results, counts = {}, {}
        for mode, stage in stages.items():
            with Calls() as calls:
                results[mode] = step(stage, *batch(cp, cp_mode))
            counts[mode] = sum(calls.counts[collective] for collective in COLLECTIVES)
        answers[name] = [same(results["none"], results[mode]) for mode in MODES], counts
    tp = {"tp": axis, "overlap": False}
    expected = at_once(stage_of(MODEL, **tp))
    answers["halves"] = [same(expected, in_two_halves(stage_of(MODEL, mode, **tp))) for mode in MODES]
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    torch.manual_seed(4)
    state = torch.get_rng_state()
    results = {}
    for mode in MODES:
        torch.set_rng_state(state)
        results[mode] = sharded(mode, mesh)
    answers["fsdp"] = [same(results["none"], results[mode]) for mode in MODES]
    return answers


@pytest.fixture(scope="module")
def world():
    return run_world(all_arrangements, timeout_s=240).results


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_collectives_of_layers(world, name):
    """The same bits; selective sends nothing again, full what the layers' forward passes send."""
    for bits, counts in (rank[name] for rank in world):
        assert bits == [True] * 3
        assert counts["selective"] == counts["none"] > 0
        assert counts["full"] > counts["none"]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("name", ["halves", "fsdp"])
def test_under_schedules_and_fsdp(world, name):
    assert [rank[name] for rank in world] == [[True] * 3] * 2
