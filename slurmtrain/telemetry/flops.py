"""Model FLOPs of one token, forward and backward, as the field counts them. Recomputation is never counted (that is HFU).

Publishers count differently; a figure is comparable to another only under the same rule. With N parameters, L layers, H heads of
width E, V vocabulary, D hidden, P learned positions (none where they are rotary), T sequence length, W = min(T, sliding window):

    palm    6 N + 12 L H E W                        N with all embeddings; Chowdhery et al. 2022 (arXiv 2204.02311), appendix B
    full    6 (N - (V + P) D) + 12 L H E W          input embeddings are look-ups, no matmuls; NeMo's and torchtitan's rule
    causal  6 (N - (V + P) D) + 12 L H E (W - W^2 / 2T)    as full, of attention what a causal mask leaves: half, without a window;
                                                    Megatron-Bridge's rule

6 = 2 for multiply and add, times 1 forward and 2 backward. With tied embeddings the one matrix is the head's matmul, so that V D is
not taken off.
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
    if rule != "palm":
        weights -= model.hidden * ((model.max_positions or 0) + (0 if model.tied_embeddings else model.vocab))
    reach = float(min(sequence_length, model.window or sequence_length))
    if rule == "causal":
        reach -= reach * reach / (2 * sequence_length)
    return float(6 * weights + 12 * model.layers * model.heads * model.head_dim * reach)
