"""The shape of a model, and its parameter count."""

from __future__ import annotations

from typing import Any, Literal, TypeGuard

from pydantic import model_validator

from slurmtrain.config.base import Frozen, Positive, PositiveFloat
from slurmtrain.config.values import RuleError


class ModelConfig(Frozen):
    """A llama-shaped decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    family: Literal["llama"] = "llama"
    preset: str | None = None
    """Name of the shape in config/presets that the other keys start from."""
    layers: Positive
    hidden: Positive
    heads: Positive
    kv_heads: Positive
    """Heads of keys and values; equal to heads: no grouping."""
    ffn: Positive
    """Inner size of SwiGLU."""
    vocab: Positive
    head_dim: Positive = 0  # resolved to hidden / heads below
    rope_theta: PositiveFloat = 500_000.0
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

    def parameters(self) -> int:
        """Number of trainable numbers, tied embeddings counted once."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + self.hidden


def _counts(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
