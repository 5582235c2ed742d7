"""The shape of a model, and its parameter count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

from pydantic import Field, field_validator, model_validator

from slurmtrain.config.base import Fraction, Frozen, NonNegativeFloat, Positive, PositiveFloat
from slurmtrain.config.values import Line, Lines, RuleError

Family = Literal["llama", "qwen2", "qwen3", "gpt2"]


@dataclass(frozen=True)
class Traits:
    """What makes a family: everything in which the code of a model differs besides sizes."""

    norm: Literal["rms", "layer"]
    positions: Literal["rotary", "learned"]
    ffn: Literal["swiglu", "gelu"]
    qkv_bias: bool
    bias: bool
    """Of the other linears and of the norms."""
    qk_norm: bool
    """RMSNorm over each head of queries and keys, before the rotation."""


TRAITS: Mapping[Family, Traits] = {
    "llama": Traits("rms", "rotary", "swiglu", qkv_bias=False, bias=False, qk_norm=False),
    "qwen2": Traits("rms", "rotary", "swiglu", qkv_bias=True, bias=False, qk_norm=False),
    "qwen3": Traits("rms", "rotary", "swiglu", qkv_bias=False, bias=False, qk_norm=True),
    "gpt2": Traits("layer", "learned", "gelu", qkv_bias=True, bias=True, qk_norm=False),
}


class RopeScaling(Frozen):
    """Rotary positions stretched beyond the length that a model was first trained with."""

    kind: Literal["llama3", "yarn", "linear"]
    factor: PositiveFloat
    original_length: Positive | None = None
    """Positions of the first training; needed by llama3 and yarn."""
    low_freq_factor: PositiveFloat = 1.0
    """llama3."""
    high_freq_factor: PositiveFloat = 4.0
    """llama3."""
    beta_fast: PositiveFloat = 32.0
    """yarn."""
    beta_slow: PositiveFloat = 1.0
    """yarn."""
    attention_factor: NonNegativeFloat | None = None
    """yarn: cos and sin are multiplied by it; default 0.1 ln(factor) + 1."""

    @model_validator(mode="after")
    def _original_length_where_needed(self) -> RopeScaling:
        if self.kind != "linear" and self.original_length is None:
            raise RuleError(f"{self.kind} needs it: positions of the first training, such as 8192", item="original_length")
        return self


class ModelConfig(Frozen):
    """A dense decoder of one of the families in TRAITS."""

    family: Family = "llama"
    preset: str | None = None
    """Name of the shape in config/presets that the other keys start from."""
    weights: Path | None = None
    """First values, and the shape where the other keys do not say it: a folder of Hugging Face safetensors, or `run:RUN[@STEP]`, the
    weights of another run's checkpoint."""
    weights_names: dict[Line, Line] = Field(default_factory=dict)
    """Names of tensors there to the names that are looked for; one * on both sides stands for the same characters."""
    weights_missing: Lines = ()
    """Patterns of our tensors that may be missing there, or have another shape: they keep their first values."""
    weights_surplus: Lines = ()
    """Patterns of tensors there that this model has no place for."""
    layers: Positive
    hidden: Positive
    heads: Positive
    kv_heads: Positive
    """Heads of keys and values; equal to heads: no grouping."""
    ffn: Positive
    """Inner size of the feed-forward."""
    vocab: Positive
    head_dim: Positive = 0  # resolved to hidden / heads below
    rope_theta: PositiveFloat = 500_000.0
    rope_scaling: RopeScaling | None = None
    max_positions: Positive | None = None
    """Rows of the table of learned positions (gpt2)."""
    window: Positive | None = None
    """Sliding window: a token sees itself and the window - 1 before it."""
    dropout: Fraction = 0.0
    """Of the embedding and of what attention and feed-forward add to the residual stream."""
    attention_dropout: Fraction = 0.0
    norm_eps: PositiveFloat = 1e-5
    init_std: PositiveFloat = 0.02
    """Standard deviation of the initial matrices."""
    tied_embeddings: bool = False

    @model_validator(mode="before")
    @classmethod
    def _resolve_head_dim(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("head_dim"):
            return values
        hidden, heads = values.get("hidden"), values.get("heads")
        if not _counts(hidden) or not _counts(heads):
            return values
        if hidden % heads:
            raise RuleError(f"does not divide hidden = {hidden}: use a divisor of it, or give head_dim", item="heads", value=heads)
        return {**values, "head_dim": hidden // heads}

    @field_validator("weights_names")
    @classmethod
    def _stars_on_both_sides(cls, names: dict[str, str]) -> dict[str, str]:
        for there, expected in names.items():
            if there.count("*") > 1 or there.count("*") != expected.count("*"):
                raise RuleError('has one * on both sides, or none: "old.*" = "layers.*"', item=there, value=expected)
        return names

    @property
    def traits(self) -> Traits:
        return TRAITS[self.family]

    def parameters(self) -> int:
        """Number of trainable numbers, tied embeddings counted once."""
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2) + (self.max_positions or 0) * self.hidden
        return self.layers * self._layer_parameters() + embeddings + self._norm_parameters()

    def _norm_parameters(self) -> int:
        return self.hidden * (2 if self.traits.bias else 1)

    def _layer_parameters(self) -> int:
        traits, q_rows, kv_rows = self.traits, self.heads * self.head_dim, self.kv_heads * self.head_dim
        matrices = 2 * self.hidden * (q_rows + kv_rows) + (3 if traits.ffn == "swiglu" else 2) * self.hidden * self.ffn
        vectors = (q_rows + 2 * kv_rows if traits.qkv_bias else 0) + (2 * self.hidden + self.ffn if traits.bias else 0)
        return matrices + vectors + 2 * self._norm_parameters() + (2 * self.head_dim if traits.qk_norm else 0)


def _counts(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
