"""Names and shapes of a model's global tensors: what checkpoints, parts, norms and exports speak of.

>>> from slurmtrain.config.model import ModelConfig
>>> model = ModelConfig(layers=1, hidden=8, heads=4, kv_heads=2, ffn=16, vocab=32)
>>> for name, shape in global_shapes(model).items():
...     print(name, shape)
embedding.weight (32, 8)
layers.0.attention_norm.weight (8,)
layers.0.attention.q.weight (8, 8)
layers.0.attention.k.weight (4, 8)
layers.0.attention.v.weight (4, 8)
layers.0.attention.o.weight (8, 8)
layers.0.ffn_norm.weight (8,)
layers.0.ffn.gate.weight (16, 8)
layers.0.ffn.up.weight (16, 8)
layers.0.ffn.down.weight (8, 16)
norm.weight (8,)
head.weight (32, 8)
"""

from __future__ import annotations

from slurmtrain.config.model import ModelConfig

EMBEDDING = "embedding.weight"
POSITIONS = "positions.weight"
NORM = "norm.weight"
NORM_BIAS = "norm.bias"
HEAD = "head.weight"


def layer_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of one layer's tensors, by their names without the prefix `layers.N.`; matrices are [out, in]."""
    D, F, E, traits = model.hidden, model.ffn, model.head_dim, model.traits
    q_rows, kv_rows = model.heads * E, model.kv_heads * E
    linears = {"attention.q": (q_rows, D), "attention.k": (kv_rows, D), "attention.v": (kv_rows, D), "attention.o": (D, q_rows)}
    gate = {"ffn.gate": (F, D)} if traits.ffn == "swiglu" else {}
    ffn = {**gate, "ffn.up": (F, D), "ffn.down": (D, F)}
    shapes: dict[str, tuple[int, ...]] = {}
    for norm, group in (("attention_norm", linears), ("ffn_norm", ffn)):
        shapes[f"{norm}.weight"] = (D,)
        if traits.bias:
            shapes[f"{norm}.bias"] = (D,)
        for name, shape in group.items():
            shapes[f"{name}.weight"] = shape
            if traits.bias or (traits.qkv_bias and name in ("attention.q", "attention.k", "attention.v")):
                shapes[f"{name}.bias"] = shape[:1]
            if traits.qk_norm and name in ("attention.q", "attention.k"):
                shapes[f"{name}_norm.weight"] = (E,)
    return shapes


def layer_name(layer: int, name: str) -> str:
    """The global name of a layer's tensor."""
    return f"layers.{layer}.{name}"


def global_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """All global tensors in the order of the forward pass. Tied embeddings: no `head.weight`."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (model.vocab, model.hidden)}
    if model.traits.positions == "learned":
        assert model.max_positions is not None, "configuration checks refuse this"
        shapes[POSITIONS] = (model.max_positions, model.hidden)
    for layer in range(model.layers):
        shapes |= {layer_name(layer, name): shape for name, shape in layer_shapes(model).items()}
    shapes[NORM] = (model.hidden,)
    if model.traits.bias:
        shapes[NORM_BIAS] = (model.hidden,)
    if not model.tied_embeddings:
        shapes[HEAD] = (model.vocab, model.hidden)
    return shapes
