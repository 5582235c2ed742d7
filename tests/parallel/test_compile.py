"""Compiled layers give what the layers give, each as one graph; what is refused does not work."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.distributed as dist

from slurmtrain.config.check_training import check_numerics
from slurmtrain.config.compile import compile_fault
from slurmtrain.config.job import JobConfig
from slurmtrain.errors import ConfigError
from slurmtrain.parallel.axis import Axis, Meter
from slurmtrain.parallel.compile import compile_blocks
from tests.mpi_world import cpu_site, gloo_group, run_world
from tests.parallel.test_recompute import DROPPING, MODEL, MODES, T, at_once, batch, held_by, in_two_halves, same, stage_of, step

# A compiler looks at .grad of what is no leaf, of which torch warns.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
GRAPH = [(1, 0)] * 3
"""(graphs, breaks) of the modes: all layers share one graph."""
ARRANGEMENTS = {
    "tp": ({"tp": True}, GRAPH),
    "tp apart": ({"tp": True, "overlap": False}, GRAPH),
    "allgather": ({"cp_mode": "allgather"}, GRAPH),
    "ulysses": ({"cp_mode": "ulysses"}, GRAPH),
    "ring": ({"cp_mode": "ring"}, [(4, 2), (0, 1), (0, 1)]),
}


def compiled(mode, backend="aot_eager", model=MODEL, **how):
    """A stage whose layers are compiled anew."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    stage = stage_of(model, mode, **how)
    compile_blocks(stage, backend)
    return stage


def graphs():
    """(graphs, graph breaks) since `compiled`."""
    counters = torch._dynamo.utils.counters
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


def sharded(stage, mesh):
    """Loss and this rank's gradients under FSDP2 in bf16, of the second step."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for module in (*stage.layers.values(), stage):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    for _ in range(2):
        results = step(stage, *batch())
    return [x.to_local() if hasattr(x, "to_local") else x for x in results]


def all_arrangements():
    """{arrangement: (largest difference and graphs, by mode)}."""
    from torch.distributed.device_mesh import DeviceMesh

    torch.set_num_threads(1)
    axis = Axis("axis", dist.group.WORLD, 2, gloo_group().rank, Meter(torch.device("cpu")))
    answers = {}
    for name, (given, _) in ARRANGEMENTS.items():
        cp, cp_mode = (axis, given["cp_mode"]) if "cp_mode" in given else (None, "ring")
        how = {**given, "cp": cp, "tp": axis if "tp" in given else None}
        expected = step(stage_of(MODEL, **how), *batch(cp, cp_mode))
        answers[name] = []
        for mode in MODES:
            results = step(compiled(mode, **how), *batch(cp, cp_mode))
            difference = max((a - b).abs().max().item() for a, b in zip(results, expected, strict=True))
            answers[name].append((difference, graphs()))
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    expected = sharded(stage_of(DROPPING), mesh)
    answers["fsdp"] = [(same(sharded(compiled(mode, model=DROPPING), mesh), expected), graphs()) for mode in MODES]
    return answers


@pytest.fixture(scope="module")
def world():
    return run_world(all_arrangements, timeout_s=400).results


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_explicit_functions_compile(world, name):
    """Collectives inside the graph; the ring beside graphs, and under recomputation not at all (so that it is refused)."""
    for rank in world:
        assert max(difference for difference, _ in rank[name]) <= 1e-6
        assert [found for _, found in rank[name]] == ARRANGEMENTS[name][1]


@pytest.mark.mpi
@pytest.mark.long
def test_under_fsdp(world):
    """The same bits as without, with dropout, weights gathered anew for the backward pass."""
    assert [rank["fsdp"] for rank in world] == [[(True, (1, 0))] * 3] * 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_same_bits_and_names(mode):
    """Also with dropout, with more layers than a function may be compiled anew for (8), and in evaluation."""
    model = DROPPING.model_copy(update={"layers": 10})
    plain, stage = stage_of(model), compiled(mode, model=model)
    assert [name for name, _ in stage.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert same(step(stage, *batch()), step(plain, *batch()))
    assert graphs() == (1, 0)
    with torch.no_grad():
        assert torch.equal(stage.eval()(*batch()), plain.eval()(*batch()))


@pytest.mark.slow
def test_memory_of_compiled_layers():
    """Full keeps a layer's input alone there too."""
    held = {}
    for mode in MODES:
        held[mode] = held_by(lambda layers, mode=mode: compiled(mode, model=MODEL.model_copy(update={"layers": layers})))
    assert held["full"] == T * 2 * 32 * 4
    assert held["full"] < held["selective"] < held["none"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_backward_in_two_halves_fails(mode):
    """Why zero-bubble schedules are refused: they have whole backward passes and halves, and after a whole one no half works."""
    stage = compiled(mode, overlap=False)
    at_once(stage)
    with pytest.raises(RuntimeError, match="Failed to run stage backward"):
        in_two_halves(stage)


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on CPUs: g++ is not there")


@pytest.mark.slow
@needs_compiler
def test_inductor_gives_the_values():
    """To rounding, since it fuses."""
    torch.testing.assert_close(step(compiled("full", "inductor"), *batch()), step(stage_of(MODEL), *batch()), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("mode", MODES)
def test_inductor_with_dropout(mode):
    """Its masks are its own: the gradient must be the slope of the loss under the same seed."""
    stage = compiled(mode, "inductor", DROPPING)
    grads = step(stage, *batch())[1:-1]
    norm = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()
    directions = [grad / norm for grad in grads]
    losses = []
    for distance in (1e-3, -2e-3):
        with torch.no_grad():
            for parameter, direction in zip(stage.parameters(), directions, strict=True):
                parameter.add_(direction, alpha=distance)
        losses.append(step(stage, *batch())[0])
    assert ((losses[0] - losses[1]) / 2e-3).item() == pytest.approx(norm.item(), rel=1e-2)


def job_of(**sections):
    given = {"training": {}, "parallel": {}, **sections}
    return JobConfig.model_validate(
        {
            "run": {"name": "r"},
            "model": {"layers": 8, "hidden": 32, "heads": 4, "kv_heads": 4, "ffn": 64, "vocab": 64},
            "data": {"path": "/d"},
            "training": {"steps": 1, "sequence_length": 16, "global_batch": 8, **given["training"]},
            "parallel": given["parallel"],
        }
    )


@pytest.mark.parametrize("schedule", ["interleaved-zero-bubble", "zbv", "dualpipev"])
def test_zero_bubble_is_refused(schedule):
    job = job_of(training={"compile": "inductor"}, parallel={"pp": 2, "schedule": schedule})
    assert f'schedule = "{schedule}"' in compile_fault(job)
    with pytest.raises(ConfigError, match=r"training\.compile"):
        check_numerics(job, cpu_site(2))
    assert compile_fault(job_of(training={"compile": "off"}, parallel={"pp": 2, "schedule": schedule})) is None


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_the_ring_with_recompute_is_refused(mode):
    job = job_of(training={"compile": "inductor", "recompute": mode}, parallel={"cp": 2})
    assert f'recompute = "{mode}"' in compile_fault(job)


@pytest.mark.parametrize(
    ("training", "parallel"),
    [
        ({"recompute": "full"}, {"tp": 2, "dp_mode": "fsdp"}),
        ({}, {"cp": 2}),
        ({"recompute": "selective"}, {"cp": 2, "cp_mode": "ulysses"}),
        ({"recompute": "selective"}, {"pp": 2, "schedule": "interleaved"}),
        ({}, {"schedule": "zbv"}),
    ],
)
def test_the_rest_is_not_refused(training, parallel):
    assert compile_fault(job_of(training={"compile": "aot_eager", **training}, parallel=parallel)) is None
