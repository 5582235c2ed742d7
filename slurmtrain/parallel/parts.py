"""Which boxes of which global tensors a rank's local parameters hold: a pure function of model, stage and coordinates.

Column-parallel weights hold rows, several global tensors fused one above the other (q, k, v; gate, up), and their biases alike;
row-parallel weights hold columns; embedding and head hold rows of the vocabulary, the last rank padded with rows that belong to no
part; all else (norms, biases that are added after the sum, learned positions) is whole on every rank. Where tensor-parallel ranks
outnumber kv heads, neighbours hold the same one. FSDP's dim-0 chunk of a local parameter composes with all of these (`shard_rows`).

>>> qkv = column([("q", (8, 4)), ("k", (4, 4))], index=1, size=2)
>>> qkv.shape, [(p.name, p.box.offset, p.region) for p in qkv.parts]
((6, 4), [('q', (4, 0), ((0, 4), (0, 4))), ('k', (2, 0), ((4, 6), (0, 4)))])
>>> [(p.name, p.box.offset, p.region) for p in shard_rows(qkv, index=1, size=2).parts]
[('q', (7, 0), ((0, 1), (0, 4))), ('k', (2, 0), ((1, 3), (0, 4)))]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurmtrain.boxes import Box, Part, whole
from slurmtrain.config.model import ModelConfig
from slurmtrain.models.names import EMBEDDING, HEAD, NORM, NORM_BIAS, POSITIONS, layer_name, layer_shapes

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
    """Rows index/size of each tensor (matrices or biases), one above the other."""
    parts, top, rest = [], 0, tensors[0][1][1:]
    for name, shape in tensors:
        rows = _even(shape[0], size, name)
        box = Box((index * rows, *(0 for _ in rest)), (rows, *rest))
        parts.append(Part(name, shape, box, ((top, top + rows), *((0, s) for s in rest))))
        top += rows
    return Layout((top, *rest), tuple(parts))


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


def copied(name: str, shape: Shape, index: int, size: int) -> Layout:
    """The whole tensor on every tensor-parallel rank."""
    part = Part(name, shape, whole(shape), tuple((0, s) for s in shape))
    return Layout(shape, (part,), Copies(1, 0, index == 0) if size > 1 else None)


def _fused(shapes: Mapping[str, Shape], model: ModelConfig, size: int) -> dict[str, tuple[str, ...]]:
    """Column linears of a layer by their local names: the global linears that lie in each, one above the other."""
    gate_up = {"ffn.gate_up": ("ffn.gate", "ffn.up")} if "ffn.gate.weight" in shapes else {"ffn.up": ("ffn.up",)}
    if size > model.kv_heads:
        return {"attention.q": ("attention.q",), "attention.kv": ("attention.k", "attention.v"), **gate_up}
    return {"attention.qkv": ("attention.q", "attention.k", "attention.v"), **gate_up}


def _shared_kv(tensors: Sequence[tuple[str, Shape]], model: ModelConfig, index: int, size: int) -> Layout:
    """One kv head, the same on size / kv_heads neighbours: that of this rank's query heads."""
    sharers = _even(size, model.kv_heads, "tensor-parallel ranks by kv heads")
    slot = index // sharers
    return replace(column(tensors, slot, model.kv_heads), copies=Copies(model.kv_heads, slot, index % sharers == 0))


def layer_layouts(model: ModelConfig, layer: int, index: int, size: int) -> dict[str, Layout]:
    """Local parameters of one layer at tensor-parallel coordinate `index` of `size`, by their names in the stage."""
    _even(model.heads, size, "heads")
    shapes, local = layer_shapes(model), {}
    rest = set(shapes)
    for fused, names in _fused(shapes, model, size).items():
        for kind in ("weight", "bias"):
            tensors = [(layer_name(layer, full), shapes[full]) for name in names if (full := f"{name}.{kind}") in shapes]
            rest -= {f"{name}.{kind}" for name in names}
            if tensors:
                shared = fused == "attention.kv"
                local[f"{fused}.{kind}"] = _shared_kv(tensors, model, index, size) if shared else column(tensors, index, size)
    for name in ("attention.o.weight", "ffn.down.weight"):
        local[name] = row(layer_name(layer, name), shapes[name], index, size)
    for name in rest - set(local):
        local[name] = copied(layer_name(layer, name), shapes[name], index, size)
    return {layer_name(layer, name): local[name] for name in sorted(local)}


def stage_layouts(model: ModelConfig, layers: Sequence[int], *, first: bool, last: bool, index: int, size: int) -> dict[str, Layout]:
    """Local parameters of a pipeline stage at tensor-parallel coordinate `index` of `size`.

    The last stage of a tied model holds the embedding a second time as its head, unless it is the first stage too.
    """
    layouts: dict[str, Layout] = {}
    words = (model.vocab, model.hidden)
    apart = model.tied_embeddings and not (first and last)
    if first:
        layouts[EMBEDDING] = replace(vocabulary(EMBEDDING, words, index, size), tied=apart)
        if model.traits.positions == "learned":
            assert model.max_positions is not None, "configuration checks refuse this"
            layouts[POSITIONS] = copied(POSITIONS, (model.max_positions, model.hidden), index, size)
    for layer in layers:
        layouts |= layer_layouts(model, layer, index, size)
    if last:
        for name in (NORM, NORM_BIAS) if model.traits.bias else (NORM,):
            layouts[name] = copied(name, (model.hidden,), index, size)
        if not model.tied_embeddings:
            layouts[HEAD] = vocabulary(HEAD, words, index, size)
        elif apart:
            layouts[HEAD] = replace(vocabulary(EMBEDDING, words, index, size), tied=True, counted=False)
    return layouts


def shard_rows(layout: Layout, index: int, size: int) -> Layout:
    """The dim-0 chunk that FSDP keeps of a local parameter: ceil(rows / size) rows a rank, the last ones fewer or none."""
    rows = layout.shape[0]
    each = -(-rows // size)
    low, high = min(index * each, rows), min((index + 1) * each, rows)
    parts = tuple(cut for part in layout.parts if (cut := _cut(part, low, high)))
    return replace(layout, shape=(high - low, *layout.shape[1:]), parts=parts)


def _cut(part: Part, low: int, high: int) -> Part | None:
    """What local rows low..high hold of a part, in the coordinates of those rows."""
    (top, bottom), *rest = part.region
    first, last = max(top, low), min(bottom, high)
    if first >= last:
        return None
    offset = (part.box.offset[0] + first - top, *part.box.offset[1:])
    box = Box(offset, (last - first, *part.box.shape[1:]))
    return Part(part.name, part.global_shape, box, ((first - low, last - low), *rest))
