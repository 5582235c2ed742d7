"""Where our global tensors lie in the tensors of Hugging Face's models; pure.

Llama, Mistral, Qwen2 and Qwen3 hold them one to one. GPT-2 keeps matrices [in, out] (its Conv1D) and q, k, v side by side in one.

>>> from slurmtrain.config.model import ModelConfig
>>> model = ModelConfig(family="gpt2", layers=1, hidden=8, heads=2, kv_heads=2, ffn=32, vocab=16, max_positions=4)
>>> places(model)["layers.0.attention.k.weight"]
Place(name='transformer.h.0.attn.c_attn.weight', shape=(8, 24), start=8, transposed=True)
>>> places(model)["layers.0.attention.k.weight"].box(Box((2, 1), (3, 4)))
Box(offset=(1, 10), shape=(4, 3))
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurmtrain.boxes import Box
from slurmtrain.config.model import ModelConfig
from slurmtrain.models.names import global_shapes

_LLAMA = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attention.{one}": f"self_attn.{one}_proj" for one in "qkvo"},
    **{f"attention.{one}_norm": f"self_attn.{one}_norm" for one in "qk"},
    **{f"ffn.{one}": f"mlp.{one}_proj" for one in ("gate", "up", "down")},
}
_GPT2 = {
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "attention_norm": "ln_1",
    "ffn_norm": "ln_2",
    **{f"attention.{one}": "attn.c_attn" for one in "qkv"},
    "attention.o": "attn.c_proj",
    "ffn.up": "mlp.c_fc",
    "ffn.down": "mlp.c_proj",
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_PREFIX = re.compile(r"(model|transformer)\.")
_BUFFERS = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|attn\.(masked_)?bias)")


@dataclass(frozen=True)
class Place:
    """A global tensor in a Hugging Face tensor of this name and whole shape.

    `start`: the row in it, seen [out, in], that is the global tensor's row 0. `transposed`: it is kept [in, out].
    """

    name: str
    shape: tuple[int, ...]
    start: int = 0
    transposed: bool = False

    def box(self, box: Box) -> Box:
        """Where a box of the global tensor lies, in the coordinates of the Hugging Face tensor."""
        offset = (box.offset[0] + self.start, *box.offset[1:])
        return Box(offset[::-1], box.shape[::-1]) if self.transposed else Box(offset, box.shape)


def places(model: ModelConfig) -> dict[str, Place]:
    """The place of every global tensor, in the order of `global_shapes`."""
    place = _gpt2_place if model.family == "gpt2" else _llama_place
    return {name: place(name, shape, model) for name, shape in global_shapes(model).items()}


def base_name(name: str) -> str:
    """A Hugging Face name as the model without its head would save it."""
    return _PREFIX.sub("", name, count=1) if _PREFIX.match(name) else name


def means_nothing(name: str) -> bool:
    """Whether a tensor of this base name is a buffer, or the head of a model whose head may be tied."""
    return name == "lm_head.weight" or _BUFFERS.fullmatch(name) is not None


def _split(name: str) -> tuple[str, str, str]:
    """Layer ("" for none), module and kind of a global name: "3", "ffn.up", "weight"."""
    form = _LAYER.fullmatch(name)
    layer, inner = (form[1], form[2]) if form else ("", name)
    stem, _, kind = inner.rpartition(".")
    return layer, stem, kind


def _llama_place(name: str, shape: tuple[int, ...], _model: ModelConfig) -> Place:
    layer, stem, kind = _split(name)
    return Place(f"model.layers.{layer}.{_LLAMA[stem]}.{kind}" if layer else f"{_LLAMA[stem]}.{kind}", shape)


def _gpt2_place(name: str, shape: tuple[int, ...], model: ModelConfig) -> Place:
    layer, stem, kind = _split(name)
    if not layer:
        return Place(f"{_GPT2[stem]}.{kind}", shape)
    where, start, whole = f"transformer.h.{layer}.{_GPT2[stem]}.{kind}", 0, shape
    if stem in ("attention.q", "attention.k", "attention.v"):
        start = "qkv".index(stem[-1]) * model.hidden
        whole = (3 * model.hidden, *shape[1:])
    transposed = len(shape) == 2
    return Place(where, whole[::-1] if transposed else whole, start, transposed)
