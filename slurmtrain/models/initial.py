"""First values of the global tensors, a function of (seed, name) alone: every layout starts from the same bits.

A tensor is drawn in blocks of whole rows, each from its own generator, so that a rank draws the blocks that its box touches and
never holds the whole. Matrices, learned positions among them: normal, std `init_std`; the two that write to the residual stream
(`o`, `down`) std init_std / sqrt(2 * layers) (Radford et al. 2019, section 2.3); biases: zero; weights of norms: one.
"""

from __future__ import annotations

import hashlib
from math import prod

import torch
from torch import Tensor

from slurmtrain.boxes import Box, Part
from slurmtrain.config.model import ModelConfig

BLOCK_ELEMENTS = 1 << 20
_RESIDUAL = (".attention.o.weight", ".ffn.down.weight")


def std_of(name: str, model: ModelConfig) -> float:
    """Standard deviation of a matrix's first values."""
    return model.init_std / (2 * model.layers) ** 0.5 if name.endswith(_RESIDUAL) else model.init_std


def fill(local: Tensor, part: Part, model: ModelConfig, seed: int) -> None:
    """Write the first values of the part's box into its slice of the local tensor."""
    region = tuple(slice(a, b) for a, b in part.region)
    with torch.no_grad():
        local[region].copy_(first_values(part, model, seed))


def first_values(part: Part, model: ModelConfig, seed: int) -> Tensor:
    """First values of the part's box, fp32, on the CPU."""
    if len(part.global_shape) == 1:
        return torch.zeros(part.box.shape) if part.name.endswith(".bias") else torch.ones(part.box.shape)
    values = torch.empty(part.box.shape)
    if part.box.volume:
        _draw(values, part, std_of(part.name, model), seed)
    return values


def _draw(values: Tensor, part: Part, std: float, seed: int) -> None:
    rows, width = part.global_shape[0], prod(part.global_shape[1:])
    step = max(1, BLOCK_ELEMENTS // width)
    (start, *_), (stop, *_) = part.box.offset, part.box.stop
    columns = tuple(slice(o, o + s) for o, s in zip(part.box.offset[1:], part.box.shape[1:], strict=True))
    for block in range(start // step, (stop - 1) // step + 1):
        low, high = block * step, min(rows, (block + 1) * step)
        drawn = torch.empty(high - low, *part.global_shape[1:]).normal_(0.0, std, generator=_generator(seed, part.name, block))
        first, last = max(low, start), min(high, stop)
        values[first - start : last - start] = drawn[first - low : last - low][:, *columns]


def _generator(seed: int, name: str, block: int) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}/{name}/{block}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def whole_part(name: str, shape: tuple[int, ...]) -> Part:
    """A global tensor that lies whole in a local one."""
    return Part(name, shape, Box((0,) * len(shape), shape), tuple((0, s) for s in shape))


def initialise(module: torch.nn.Module, model: ModelConfig, seed: int) -> None:
    """Give a single-device model its first values; its parameter names are global names."""
    for name, parameter in module.named_parameters():
        fill(parameter.data, whole_part(name, tuple(parameter.shape)), model, seed)
