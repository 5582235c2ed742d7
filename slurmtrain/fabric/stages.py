"""How many layers each pipeline stage gets. Pure.

A stage costs the operations of one token, forward (the backward pass is twice that everywhere: Narayanan et al., arXiv 2104.04473,
appendix), counted as in `telemetry.flops` by its rule "causal": 2 for each number of a matrix, and attention of a causal mask
at half. The embedding is a look-up, as many operations as numbers; the loss takes five for each logit (largest, difference,
exponential, sum, gradient).

>>> from slurmtrain.config.model import ModelConfig
>>> model = ModelConfig(layers=8, hidden=64, heads=4, kv_heads=4, ffn=256, vocab=1000)
>>> cut(model, 128, 2), cut(model, 128, 4)
((4, 4), (2, 2, 2, 2))
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from slurmtrain.config.model import ModelConfig
from slurmtrain.errors import PlacementError

LOSS_OPERATIONS = 5


def cut(model: ModelConfig, sequence_length: int, count: int, stages: Sequence[int] | None = None) -> tuple[int, ...]:
    """Layers of each of `count` stages, so that the costliest costs least; `stages`: as asked for, checked.

    Of equally good cuts the one with the least sum of squared costs, then with the fewest layers in the first stages, which hold
    the most micro-batches. Raises PlacementError.
    """
    layers = model.layers
    if stages is not None:
        return _asked(layers, count, tuple(stages))
    if count > layers:
        raise PlacementError(f"parallel.pp x vp = {count} does not cut {layers} layers into stages of one or more: use 1 to {layers}")
    return _cheapest(layers, count, layer_operations(model, sequence_length), model.hidden, head_operations(model))


def layer_operations(model: ModelConfig, sequence_length: int) -> int:
    """Of one token in one layer, forward."""
    D, E = model.hidden, model.head_dim
    matrices = 2 * D * E * (model.heads + model.kv_heads) + (3 if model.traits.ffn == "swiglu" else 2) * D * model.ffn
    seen = min(sequence_length, 2 * (model.window or sequence_length))  # twice the keys that a token sees on average
    return 2 * matrices + 2 * model.heads * E * seen


def head_operations(model: ModelConfig) -> int:
    """Of one token in the head and the loss."""
    return model.vocab * (2 * model.hidden + LOSS_OPERATIONS)


def _asked(layers: int, count: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    if len(sizes) != count:
        raise PlacementError(f"parallel.stages = {list(sizes)} names {len(sizes)} stages, pp x vp = {count}: give {count} numbers")
    if sum(sizes) != layers or min(sizes) < 1:
        fault = f"parallel.stages = {list(sizes)} has {sum(sizes)} layers, the model {layers}"
        raise PlacementError(f"{fault}: give {count} numbers of 1 or more that add up to {layers}")
    return sizes


def _cheapest(layers: int, count: int, layer: int, first: int, last: int) -> tuple[int, ...]:
    """Dynamic programming over the first stages, first for the largest cost, then for the squares under it."""

    def cost(stage: int, size: int) -> int:
        return size * layer + first * (stage == 0) + last * (stage == count - 1)

    @cache
    def largest(stage: int, left: int) -> int:
        if stage == count - 1:
            return cost(stage, left)
        return min(max(cost(stage, size), largest(stage + 1, left - size)) for size in range(1, left - (count - stage - 1) + 1))

    bound = largest(0, layers)

    @cache
    def squares(stage: int, left: int) -> tuple[int, tuple[int, ...]] | None:
        if stage == count - 1:
            return (cost(stage, left) ** 2, (left,)) if cost(stage, left) <= bound else None
        found = [
            (cost(stage, size) ** 2 + rest[0], (size, *rest[1]))
            for size in range(1, left - (count - stage - 1) + 1)
            if cost(stage, size) <= bound and (rest := squares(stage + 1, left - size))
        ]
        return min(found, default=None)

    best = squares(0, layers)
    assert best is not None
    return best[1]
