"""What a rank feeds to its stages in one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100
"""Label of a token that has no loss, as in torch's cross-entropy."""


@dataclass(frozen=True)
class StepBatch:
    """N = micro-batches x micro-batch sequences of T tokens, int64. labels: the tokens after, or IGNORED.

    `positions_NT`, `documents_NT`: where documents are separate; else positions run from 0 and all is one document.
    """

    tokens_NT: Tensor
    labels_NT: Tensor
    positions_NT: Tensor | None = None
    documents_NT: Tensor | None = None

    def __post_init__(self) -> None:
        shapes = {tuple(x.shape) for x in self.tensors() if x is not None}
        assert len(shapes) == 1, f"tensors of one batch have different shapes: {shapes}"

    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        return self.tokens_NT, self.labels_NT, self.positions_NT, self.documents_NT

    def extras(self) -> dict[str, Tensor]:
        """What a stage takes besides its input, by the names of its arguments."""
        named = {"labels_BT": self.labels_NT, "positions_BT": self.positions_NT, "documents_BT": self.documents_NT}
        return {name: x for name, x in named.items() if x is not None}

    def map(self, change: Callable[[Tensor], Tensor]) -> StepBatch:
        """The same change to each tensor."""
        return StepBatch(*(None if x is None else change(x) for x in self.tensors()))  # type: ignore[arg-type]

    def microbatches(self, count: int) -> list[StepBatch]:
        """`count` equal pieces."""
        assert self.tokens_NT.shape[0] % count == 0, (tuple(self.tokens_NT.shape), count)
        each = self.tokens_NT.shape[0] // count
        return [self.map(lambda x, start=i * each: x[start : start + each]) for i in range(count)]  # type: ignore[misc]

    def valid_tokens(self) -> Tensor:
        """Number of tokens that have a loss (int64, on the device)."""
        return (self.labels_NT != IGNORED).sum(dtype=torch.int64)
