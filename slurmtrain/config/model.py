"""The shape of a model, and its parameter count."""

from __future__ import annotations

from pydantic import model_validator

from slurmtrain.config.base import Frozen, Positive, PositiveFloat


class ModelConfig(Frozen):
    """A llama-shaped decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    family: str = "llama"
    preset: str | None = None
    layers: Positive
    hidden: Positive
    heads: Positive
    kv_heads: Positive
    ffn: Positive
    vocab: Positive
    head_dim: Positive = 0  # resolved to hidden / heads below
    rope_theta: PositiveFloat = 500_000.0
    norm_eps: PositiveFloat = 1e-5
    init_std: PositiveFloat = 0.02
    tied_embeddings: bool = False

    @model_validator(mode="before")
    @classmethod
    def _resolve_head_dim(cls, values: dict[str, object]) -> dict[str, object]:
        hidden, heads = values.get("hidden"), values.get("heads")
        if not values.get("head_dim") and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
            return {**values, "head_dim": max(1, hidden // heads)}
        return values

    def parameters(self) -> int:
        """Number of trainable numbers, tied embeddings counted once."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + self.hidden
