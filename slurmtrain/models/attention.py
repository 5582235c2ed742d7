"""Causal attention over rotated queries and keys, and the seam where context parallelism puts its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


class Attend(Protocol):
    """Attention of one device or of a group that shares a sequence."""

    def mask(self, documents_BT: Tensor | None) -> Tensor | None:
        """What all layers of a forward pass share. `documents_BT`: the number of each token's document, this rank's positions."""

    def __call__(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        """[B, H, T, E]; query head h reads kv head h // (H / K). T: this rank's positions."""


def allowed(query: Tensor, key: Tensor, window: int | None) -> Tensor:
    """Whether a query at a position sees a key at another: not after it, and in the window; [Tq] and [Tk] to bool [Tq, Tk]."""
    distance = query[:, None] - key[None, :]
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)


@dataclass(frozen=True)
class Whole:
    """Attention of a device that has all positions. `window`: a token sees itself and the window - 1 before it."""

    window: int | None = None

    def mask(self, documents_BT: Tensor | None) -> Tensor | None:
        """None: causal alone. [B, 1, T, T] bool where documents are separate."""
        if documents_BT is None:
            return None
        place = torch.arange(documents_BT.shape[1], device=documents_BT.device)
        same = documents_BT[:, None, :, None] == documents_BT[:, None, None, :]
        return same & allowed(place, place, self.window)

    def __call__(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        length = q_BHTE.shape[2]
        if mask is None and self.window is not None and self.window < length:
            place = torch.arange(length, device=q_BHTE.device)
            mask = allowed(place, place, self.window)
        grouped = q_BHTE.shape[1] != k_BKTE.shape[1]
        return functional.scaled_dot_product_attention(
            q_BHTE, k_BKTE, v_BKTE, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, enable_gqa=grouped
        )
