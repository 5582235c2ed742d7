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
NORM = "norm.weight"
HEAD = "head.weight"


def layer_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of one layer's tensors, by their names without the prefix `layers.N.`; matrices are [out, in]."""
    D, F, E = model.hidden, model.ffn, model.head_dim
    q_rows, kv_rows = model.heads * E, model.kv_heads * E
    return {
        "attention_norm.weight": (D,),
        "attention.q.weight": (q_rows, D),
        "attention.k.weight": (kv_rows, D),
        "attention.v.weight": (kv_rows, D),
        "attention.o.weight": (D, q_rows),
        "ffn_norm.weight": (D,),
        "ffn.gate.weight": (F, D),
        "ffn.up.weight": (F, D),
        "ffn.down.weight": (D, F),
    }


def layer_name(layer: int, name: str) -> str:
    """The global name of a layer's tensor."""
    return f"layers.{layer}.{name}"


def global_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """All global tensors in the order of the forward pass. Tied embeddings: no `head.weight`."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (model.vocab, model.hidden)}
    for layer in range(model.layers):
        shapes |= {layer_name(layer, name): shape for name, shape in layer_shapes(model).items()}
    shapes[NORM] = (model.hidden,)
    if not model.tied_embeddings:
        shapes[HEAD] = (model.vocab, model.hidden)
    return shapes
