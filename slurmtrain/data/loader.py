"""Batches of one data-parallel rank: reads of mapped memory, made ahead of the step by a thread.

What the batch of a step holds is a function of (seed, position) alone. All ranks of one model replica have the same `data_rank`, and so
the same batch; all data-parallel ranks together have the same samples whatever their number is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from slurmtrain.data.mixture import Mixture
from slurmtrain.data.prefetch import Prefetch
from slurmtrain.data.sampler import Sampler, seed_of_source
from slurmtrain.data.samples import Sample, Samples


@dataclass(frozen=True)
class Batch:
    """One step of one rank, int64, each [micro-batches, micro-batch, T]. labels: the tokens after the inputs, or -100: no loss.

    positions, documents: only where documents are separate.
    """

    inputs: np.ndarray
    labels: np.ndarray
    positions: np.ndarray | None = None
    documents: np.ndarray | None = None


@dataclass(frozen=True)
class Share:
    """Which part of a global batch is this rank's: of equal runs of its samples the one with this rank's number."""

    data_rank: int
    data_size: int
    micro_batch: int

    def __post_init__(self) -> None:
        assert 0 <= self.data_rank < self.data_size, self

    def of(self, position: int, global_batch: int) -> range:
        """Positions of this rank's samples."""
        assert global_batch % (self.data_size * self.micro_batch) == 0, (global_batch, self)
        each = global_batch // self.data_size
        return range(position + self.data_rank * each, position + (self.data_rank + 1) * each)


class Batches:
    """The batches of a rank, step after step, for ever. `position`: samples that the whole run has consumed; the value to save and to
    go on from (`seek`), whatever the batches that are made ahead.

    `pools`, `weights`: of each source; `global_batch`: of a step, counted from 1; `prefetch`: batches made ahead, 0: none, in the
    caller's thread; `pin`: in page-locked memory, from which a GPU copies beside its work. `fingerprint`: what positions count in;
    `notes`: what the user should know about where the tokens are read. Errors of the data (DataError) surface at the step.
    """

    def __init__(
        self,
        pools: Sequence[Samples],
        weights: Sequence[float],
        *,
        global_batch: Callable[[int], int],
        share: Share,
        seed: int,
        position: int = 0,
        step: int = 0,
        prefetch: int = 0,
        pin: bool = False,
        fingerprint: str = "",
        notes: tuple[str, ...] = (),
    ) -> None:
        self.fingerprint, self.notes = fingerprint, notes
        self._pools, self._mixture = pools, Mixture(weights)
        self._samplers = [Sampler(len(pool), seed_of_source(seed, number)) for number, pool in enumerate(pools)]
        self._global_batch, self._share, self._depth, self._pin = global_batch, share, prefetch, pin
        self._ahead: Prefetch[tuple[Batch, int]] | None = None
        self._made = self._taken = (position, step)

    @property
    def position(self) -> int:
        """Samples that the whole run has consumed."""
        return self._taken[0]

    def seek(self, position: int, step: int = 0) -> None:
        """Go on from this position after `step` steps; what was made ahead is dropped."""
        self.close()
        self._made = self._taken = (position, step)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """The next step's batch; moves the position on by the global batch. Raises DataError for damaged tokens."""
        if self._depth and self._ahead is None:
            self._ahead = Prefetch(self._make, self._depth)
        batch, size = self._ahead.take() if self._ahead else self._make()
        position, step = self._taken
        self._taken = (position + size, step + 1)
        return batch

    def close(self) -> None:
        """End the thread; a later batch starts it again where the last one ended."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead, self._made = None, self._taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self) -> tuple[Batch, int]:
        position, step = self._made
        size = self._global_batch(step + 1)
        batch = stack([self.sample(at) for at in self._share.of(position, size)], self._share.micro_batch, pin=self._pin)
        self._made = (position + size, step + 1)
        return batch, size

    def sample(self, position: int) -> Sample:
        """The sample at a position of the run."""
        number, given = self._mixture.pick(position)
        return self._pools[number][self._samplers[number].index_of(given)]


def stack(samples: Sequence[Sample], micro_batch: int, *, pin: bool = False) -> Batch:
    """Samples as the micro-batches of one step."""

    def stacked(name: str) -> np.ndarray | None:
        rows = [getattr(sample, name) for sample in samples]
        if rows[0] is None:
            return None
        out = _empty((len(rows) // micro_batch, micro_batch, len(rows[0])), pin=pin)
        return np.stack(rows, out=out.reshape(len(rows), -1)).reshape(out.shape)

    inputs, labels, positions, documents = (stacked(name) for name in ("inputs", "labels", "positions", "documents"))
    assert inputs is not None
    assert labels is not None
    return Batch(inputs, labels, positions, documents)


def _empty(shape: tuple[int, ...], *, pin: bool) -> np.ndarray:
    if not pin:
        return np.empty(shape, np.int64)
    import torch  # noqa: PLC0415 only on GPUs: building tokens needs no torch

    pinned: np.ndarray = torch.empty(shape, dtype=torch.int64, pin_memory=True).numpy()
    return pinned
