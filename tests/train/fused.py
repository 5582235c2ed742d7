"""Parameters as a rank has them, some of them several global tensors one above the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slurmtrain.boxes import Box, Part
from slurmtrain.parallel.parameters import LocalParameter

SHAPES = {
    "embedding.weight": (7, 4),
    "layers.0.attention.q.weight": (6, 4),
    "layers.0.attention.k.weight": (3, 4),
    "layers.0.attention.q.bias": (6,),
    "layers.0.attention.k.bias": (3,),
    "layers.0.ffn.down.weight": (4, 9),
    "norm.weight": (4,),
    "head.weight": (7, 4),
}
LAYER_MATRICES = ("layers.0.attention.q.weight", "layers.0.attention.k.weight", "layers.0.ffn.down.weight")
FUSED = {
    "layers.0.attention.qkv.weight": ("layers.0.attention.q.weight", "layers.0.attention.k.weight"),
    "layers.0.attention.qkv.bias": ("layers.0.attention.q.bias", "layers.0.attention.k.bias"),
}


@dataclass
class Held:
    value: torch.Tensor
    grad: torch.Tensor


def whole(name, top=0):
    shape = SHAPES[name]
    return Part(name, shape, Box((0,) * len(shape), shape), ((top, top + shape[0]), *((0, n) for n in shape[1:])))


def local(values) -> list[LocalParameter]:
    """The tensors as a rank has them: q and k one above the other, the rest alone."""
    groups = {**FUSED, **{name: (name,) for name in SHAPES if not any(name in names for names in FUSED.values())}}
    parameters = []
    for local_name, names in groups.items():
        value = torch.cat([values[name] for name in names])
        tops = [0, *(SHAPES[name][0] for name in names)]
        parts = tuple(whole(name, top) for name, top in zip(names, tops, strict=False))
        held = Held(value, torch.zeros_like(value))
        parameters.append(LocalParameter(local_name, held, parts, owned=True, decays=value.ndim > 1))
    return parameters


def each_part(parameters):
    for parameter in parameters:
        for part in parameter.parts:
            yield part.name, parameter, tuple(slice(a, b) for a, b in part.region)


def values_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
