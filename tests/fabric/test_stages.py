"""Layers are cut so that the costliest stage costs least; what is asked for is checked."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from slurmtrain.config.job import JobConfig
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import PlacementError
from slurmtrain.fabric.plan import build_plan
from slurmtrain.fabric.stages import cut, head_operations, layer_operations


def model(layers: int, **fields: object) -> ModelConfig:
    return ModelConfig.model_validate({"layers": layers, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 1000} | fields)


def costs(shape: ModelConfig, length: int, sizes) -> list[float]:
    """Of each stage, from the shapes of the matrices: written down apart from the code under test."""
    D, F, V, heads, kv, E = shape.hidden, shape.ffn, shape.vocab, shape.heads, shape.kv_heads, shape.head_dim
    gates = 3 if shape.traits.ffn == "swiglu" else 2
    weights = D * heads * E * 2 + D * kv * E * 2 + gates * D * F
    keys = length / 2 if shape.window is None else min(length / 2, shape.window)
    layer = 2 * weights + 2 * (heads * E * keys) * 2  # scores, then the weighted sum of values
    found = [layer * size for size in sizes]
    found[0] += D
    found[-1] += 2 * D * V + 5 * V
    return found


SHAPES = {
    "small vocabulary": {"vocab": 10},
    "as much as a layer": {"vocab": 400},
    "vocabulary above all": {"vocab": 20_000},
    "plain feed-forward": {"family": "gpt2", "kv_heads": 4, "max_positions": 4096, "vocab": 500},
    "window": {"window": 8, "vocab": 300},
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("layers", [1, 2, 5, 7, 10])
def test_cut_equals_brute_force(name, layers):
    shape = model(layers, **SHAPES[name])
    for count in range(1, layers + 1):
        cuts = [tuple(b - a for a, b in pairwise((0, *ends, layers))) for ends in combinations(range(1, layers), count - 1)]
        best = min(cuts, key=lambda sizes: (max(c := costs(shape, 256, sizes)), sum(x * x for x in c), sizes))
        assert cut(shape, 256, count) == best


def test_equal_costs_are_cut_evenly():
    shape = model(12, vocab=1, hidden=4096, heads=32, kv_heads=32, ffn=16384)
    assert [cut(shape, 4096, count) for count in (1, 2, 3, 4, 6, 12)] == [(12 // count,) * count for count in (1, 2, 3, 4, 6, 12)]


def test_a_big_vocabulary_takes_layers_from_the_last_stage():
    """Llama 3 8B on 4 stages: the head costs 2.4 layers of 4096 tokens."""
    shape = ModelConfig(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
    assert 2.2 < head_operations(shape) / layer_operations(shape, 4096) < 2.5
    assert cut(shape, 4096, 4) == (8, 9, 9, 6)


@pytest.mark.parametrize(
    ("count", "sizes", "words"),
    [
        (5, None, r"pp x vp = 5 does not cut 4 layers.*use 1 to 4"),
        (2, (1, 1, 2), r"stages = \[1, 1, 2\] names 3 stages, pp x vp = 2: give 2 numbers"),
        (2, (1, 2), r"stages = \[1, 2\] has 3 layers, the model 4: give 2 numbers of 1 or more that add up to 4"),
        (2, (0, 4), r"give 2 numbers of 1 or more"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_a_line(count, sizes, words):
    with pytest.raises(PlacementError, match=words) as refused:
        cut(model(4), 64, count, sizes)
    assert "\n" not in str(refused.value)


def test_asked_for_is_given():
    assert cut(model(4), 64, 3, (1, 2, 1)) == (1, 2, 1)


@pytest.mark.parametrize(("parallel", "stages"), [({"pp": 2}, ((0, 1, 2, 3), (4,))), ({"pp": 2, "stages": [2, 3]}, ((0, 1), (2, 3, 4)))])
def test_the_plan_has_the_cut(parallel, stages):
    job = JobConfig.model_validate(
        {
            "run": {"name": "r"},
            "model": model(5, vocab=5000).model_dump(),
            "data": {"path": "/data"},
            "training": {"steps": 1, "sequence_length": 64, "global_batch": 4},
            "parallel": parallel,
            "slurm": {"nodes": 1},
        }
    )
    assert build_plan(job, SiteConfig.model_validate({"name": "s", "node": {"gpus": 2}})).stages == stages
