"""Batches of one dp rank: a read of mapped memory, no worker processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from slurmtrain.data.sampler import Sampler
from slurmtrain.data.tokens import TokenFolder
from slurmtrain.errors import DataError


@dataclass(frozen=True)
class Batch:
    """One step of one dp rank, int64. inputs, labels: [microbatches, micro_batch, T]; labels are the tokens after the inputs."""

    inputs: np.ndarray
    labels: np.ndarray


def sample_count(tokens: TokenFolder, sequence_length: int) -> int:
    """Samples of T + 1 tokens, each beginning with the last token of the one before. Raises DataError when there is none."""
    count = (len(tokens) - 1) // sequence_length
    if count < 1:
        raise DataError(f"{tokens.path}: {len(tokens)} tokens, a sample of sequence length {sequence_length} takes {sequence_length + 1}")
    return count


class Batches:
    """The steps of one dp rank, for ever. `position`: samples that the whole run has consumed; the value to save and to resume from.

    Of the global batch (samples position .. position + global_batch - 1 in the sampler's order) dp rank d of D has the d-th of D
    equal runs; so all dp ranks together have the same samples whatever D is.
    """

    def __init__(
        self,
        tokens: TokenFolder,
        *,
        sequence_length: int,
        global_batch: int,
        micro_batch: int,
        dp_rank: int,
        dp_size: int,
        seed: int,
        position: int = 0,
    ) -> None:
        assert global_batch % (dp_size * micro_batch) == 0, (global_batch, dp_size, micro_batch)
        assert 0 <= dp_rank < dp_size, (dp_rank, dp_size)
        self.tokens, self.sequence_length, self.global_batch, self.micro_batch = tokens, sequence_length, global_batch, micro_batch
        self.dp_rank, self.dp_size, self.position = dp_rank, dp_size, position
        self.sampler = Sampler(sample_count(tokens, sequence_length), seed)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """The next step's batch; moves the position on by the global batch. Raises DataError for damaged tokens."""
        share = self.global_batch // self.dp_size
        first = self.position + self.dp_rank * share
        rows = np.stack([self.sample(self.sampler.index_of(first + i)) for i in range(share)])
        rows = rows.reshape(share // self.micro_batch, self.micro_batch, self.sequence_length + 1)
        self.position += self.global_batch
        return Batch(np.ascontiguousarray(rows[..., :-1]), np.ascontiguousarray(rows[..., 1:]))

    def sample(self, index: int) -> np.ndarray:
        """[T + 1] tokens of one sample."""
        return self.tokens.read(index * self.sequence_length, self.sequence_length + 1)
