"""Model FLOPs of one token, forward and backward, as the field counts them. Recomputation is never counted (that is HFU).

Publishers count differently; a figure is comparable to another only under the same rule. With N parameters, L layers, H heads of
width E, V vocabulary, D hidden, T sequence length:

    palm    6 N + 12 L H E T              N with all embeddings; Chowdhery et al. 2022 (arXiv 2204.02311), appendix B
    full    6 (N - V D) + 12 L H E T      the input embedding is a look-up, no matmul; NeMo's and torchtitan's rule
    causal  6 (N - V D) + 6 L H E T       as full, attention of a causal mask counted at half; Megatron-Bridge's rule

6 = 2 for multiply and add, times 1 forward and 2 backward. With tied embeddings the one matrix is the head's matmul, so that
nothing is taken off.
"""

from __future__ import annotations

from typing import Literal, get_args

from slurmtrain.config.model import ModelConfig

FlopsRule = Literal["palm", "full", "causal"]


def flops_per_token(model: ModelConfig, sequence_length: int, rule: FlopsRule = "palm") -> float:
    """FLOPs that training on one token takes under a rule. Raises ValueError for an unknown rule."""
    if rule not in get_args(FlopsRule):
        raise ValueError(f"no FLOPs rule {rule!r}: use one of {', '.join(get_args(FlopsRule))}")
    weights = model.parameters()
    if rule != "palm" and not model.tied_embeddings:
        weights -= model.vocab * model.hidden
    attention = model.layers * model.heads * model.head_dim * sequence_length
    return float(6 * weights + (6 if rule == "causal" else 12) * attention)
