"""Which boxes of which global tensors a rank's local parameters hold: a pure function of model, stage and coordinates.

Column-parallel weights hold rows, several global tensors fused one above the other (q, k, v; gate, up); row-parallel weights hold
columns; embedding and head hold rows of the vocabulary, the last rank padded with rows that belong to no part; norms are whole
on every rank. FSDP's dim-0 chunk of a local parameter composes with all of these (`shard_rows`).

>>> qkv = column([("q", (8, 4)), ("k", (4, 4))], index=1, size=2)
>>> qkv.shape, [(p.name, p.box.offset, p.region) for p in qkv.parts]
((6, 4), [('q', (4, 0), ((0, 4), (0, 4))), ('k', (2, 0), ((4, 6), (0, 4)))])
>>> [(p.name, p.box.offset, p.region) for p in shard_rows(qkv, index=1, size=2).parts]
[('q', (7, 0), ((0, 1), (0, 4))), ('k', (2, 0), ((1, 3), (0, 4)))]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurmtrain.boxes import Box, Part
from slurmtrain.config.model import ModelConfig
from slurmtrain.models.names import EMBEDDING, HEAD, NORM, layer_name, layer_shapes

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Copies:
    """Other tensor-parallel ranks hold the same parts, and each has a part of the sum that is the gradient.

    The tensor-parallel group falls into `slots` sets of neighbours, this rank is in set `slot`; `first`: it is the lowest of its set.
    """

    slots: int
    slot: int
    first: bool


@dataclass(frozen=True)
class Layout:
    """One local parameter: its shape, its parts, its copies on other tensor-parallel ranks.

    `tied`: the same global tensor is a parameter of the first and of the last pipeline stage, each with a part of the gradient;
    `counted`: of these two this one is in norms and saves (the first stage's).
    """

    shape: Shape
    parts: tuple[Part, ...]
    copies: Copies | None = None
    tied: bool = False
    counted: bool = True

    @property
    def owned(self) -> bool:
        """Whether this tensor-parallel rank's copy is the one that counts in norms and saves."""
        return self.counted and (self.copies is None or self.copies.first)


def _even(total: int, size: int, name: str) -> int:
    if total % size:
        raise AssertionError(f"{name}: {total} does not divide by {size}; configuration checks refuse this")
    return total // size


def column(tensors: Sequence[tuple[str, Shape]], index: int, size: int) -> Layout:
    """Rows index/size of each tensor, one above the other."""
    parts, top, width = [], 0, tensors[0][1][1]
    for name, shape in tensors:
        rows = _even(shape[0], size, name)
        parts.append(Part(name, shape, Box((index * rows, 0), (rows, width)), ((top, top + rows), (0, width))))
        top += rows
    return Layout((top, width), tuple(parts))


def row(name: str, shape: Shape, index: int, size: int) -> Layout:
    """Columns index/size of a tensor."""
    height, width = shape[0], _even(shape[1], size, name)
    box = Box((0, index * width), (height, width))
    return Layout(box.shape, (Part(name, shape, box, ((0, height), (0, width))),))


def vocabulary(name: str, shape: Shape, index: int, size: int) -> Layout:
    """Rows of the vocabulary, ceil(V / size) a rank; what lies past V is padding and in no part."""
    height, width = -(-shape[0] // size), shape[1]
    start = min(index * height, shape[0])
    real = min(height, shape[0] - start)
    part = Part(name, shape, Box((start, 0), (real, width)), ((0, real), (0, width)))
    return Layout((height, width), (part,) if real else ())


def copied(name: str, shape: Shape, axis: str) -> Layout:
    """The whole tensor on every rank of an axis."""
    box = Box((0,) * len(shape), shape)
    return Layout(shape, (Part(name, shape, box, tuple((0, s) for s in shape)),), frozenset({axis}))


def layer_layouts(model: ModelConfig, layer: int, index: int, size: int) -> dict[str, Layout]:
    """Local parameters of one layer at tensor-parallel coordinate `index` of `size`, by their names in the stage."""
    shapes = {layer_name(layer, name): shape for name, shape in layer_shapes(model).items()}

    def fused(*names: str) -> Layout:
        full = [layer_name(layer, name) for name in names]
        return column([(name, shapes[name]) for name in full], index, size)

    local = {
        "attention_norm.weight": copied(layer_name(layer, "attention_norm.weight"), (model.hidden,), "tp"),
        "attention.qkv.weight": fused("attention.q.weight", "attention.k.weight", "attention.v.weight"),
        "attention.o.weight": row(name := layer_name(layer, "attention.o.weight"), shapes[name], index, size),
        "ffn_norm.weight": copied(layer_name(layer, "ffn_norm.weight"), (model.hidden,), "tp"),
        "ffn.gate_up.weight": fused("ffn.gate.weight", "ffn.up.weight"),
        "ffn.down.weight": row(name := layer_name(layer, "ffn.down.weight"), shapes[name], index, size),
    }
    return {layer_name(layer, name): layout for name, layout in local.items()}


def stage_layouts(model: ModelConfig, layers: Sequence[int], *, first: bool, last: bool, index: int, size: int) -> dict[str, Layout]:
    """Local parameters of a pipeline stage. A stage that is first and last of a tied model has no head of its own."""
    layouts: dict[str, Layout] = {}
    if first:
        layouts[EMBEDDING] = vocabulary(EMBEDDING, (model.vocab, model.hidden), index, size)
    for layer in layers:
        layouts |= layer_layouts(model, layer, index, size)
    if last:
        layouts[NORM] = copied(NORM, (model.hidden,), "tp")
        if not model.tied_embeddings:
            layouts[HEAD] = vocabulary(HEAD, (model.vocab, model.hidden), index, size)
    return layouts


def shard_rows(layout: Layout, index: int, size: int) -> Layout:
    """The dim-0 chunk that FSDP keeps of a local parameter: ceil(rows / size) rows a rank, the last ones fewer or none."""
    rows = layout.shape[0]
    each = -(-rows // size)
    low, high = min(index * each, rows), min((index + 1) * each, rows)
    parts = tuple(cut for part in layout.parts if (cut := _cut(part, low, high)))
    return Layout((high - low, *layout.shape[1:]), parts, layout.copies)


def _cut(part: Part, low: int, high: int) -> Part | None:
    """What local rows low..high hold of a part, in the coordinates of those rows."""
    (top, bottom), *rest = part.region
    first, last = max(top, low), min(bottom, high)
    if first >= last:
        return None
    offset = (part.box.offset[0] + first - top, *part.box.offset[1:])
    box = Box(offset, (last - first, *part.box.shape[1:]))
    return Part(part.name, part.global_shape, box, ((first - low, last - low), *rest))
