"""Activations that are made again in the backward pass, in place of being kept (Chen et al. 2016).

A layer keeps its name and its parameters theirs: `forward` alone is replaced, so that hooks around it (FSDP2's, a compiler's) see
the layer as before. Random numbers are the same in both passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from slurmtrain.parallel.keep import Record, Replay, is_dear

Forward = Callable[..., Tensor]
Mode = Literal["none", "selective", "full"]


class Layered(Protocol):
    """What has layers, by their numbers."""

    layers: nn.ModuleDict


def recompute(stage: Layered, mode: Mode, every: int) -> None:
    """Make the activations of layers 0, every, 2 every, ... again. full: of the layer's input alone. selective: from the results of
    matrix products, attention and collectives, which are kept.
    """
    for number, layer in stage.layers.items():
        if mode != "none" and int(number) % every == 0:
            layer.forward = _selective(layer.forward) if mode == "selective" else _full(layer.forward)


def _full(forward: Forward) -> Forward:
    def again(*inputs: Any) -> Tensor:
        return checkpoint(forward, *inputs, use_reentrant=False)

    return again


def _selective(forward: Forward) -> Forward:
    def again(*inputs: Any) -> Tensor:
        return checkpoint(forward, *inputs, use_reentrant=False, context_fn=_contexts)

    return again


def _contexts() -> tuple[Any, Any]:
    """The contexts of the first pass and of those made again; a compiler knows torch's own alone."""
    if torch.compiler.is_compiling():
        return create_selective_checkpoint_contexts(_policy)
    results: dict[Any, list[Any]] = {}
    return Record(results), Replay(results)


def _policy(_context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if is_dear(func, args, kwargs) else CheckpointPolicy.PREFER_RECOMPUTE
