"""From a job to the batches of a rank: sources opened, staged where the job says so, mixed; and the batches of evaluation sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from slurmtrain.config.job import JobConfig
from slurmtrain.data.loader import Batch, Batches, Share, stack
from slurmtrain.data.samples import IGNORED, Sample, Samples
from slurmtrain.data.source import open_source
from slurmtrain.data.staging import ALONE, Node, stage_sources
from slurmtrain.data.summary import check_fits, fingerprint


def open_batches(
    job: JobConfig,
    *,
    data_rank: int,
    data_size: int,
    seed: int,
    position: int = 0,
    step: int = 0,
    ramp: Callable[[int], int] | None = None,
    node: Node = ALONE,
    pin: bool = False,
) -> Batches:
    """The batches of data-parallel rank `data_rank` of `data_size`, from `position` (samples consumed) after `step` steps on.

    `ramp`: global batch of a step, counted from 1 (default: training.global_batch); `node`: where `stage = "local"` copies to, and
    how the ranks of the node agree on it (collective then); `pin`: batches in page-locked memory. Raises DataError, and ConfigError
    where the tokens do not fit the job.
    """
    data, training = job.data, job.training
    staged = stage_sources([one.path for one in data.mixture], data.stage_bytes, node) if data.stage == "local" else None
    paths = staged.paths if staged else [one.path for one in data.mixture]
    pools = [_pool(path, job) for path in paths]
    return Batches(
        pools,
        [one.weight for one in data.mixture],
        global_batch=ramp or (lambda _: training.global_batch),
        share=Share(data_rank, data_size, training.micro_batch),
        seed=seed,
        position=position,
        step=step,
        prefetch=data.prefetch,
        pin=pin,
        fingerprint=fingerprint([pool.source.summary.sum for pool in pools], data),
        notes=staged.notes if staged else (),
    )


def _pool(path: Path, job: JobConfig, *, whole: bool = False) -> Samples:
    source = open_source(path, vocab=job.model.vocab)
    check_fits(source.summary, job, least=2 if whole else None)
    separate, answers = job.data.documents == "separate", job.data.loss_on == "answers"
    return Samples(source, job.training.sequence_length, separate=separate, answers=answers, whole=whole)


class Evaluation:
    """The batches of an evaluation set, the same at each pass: its samples in their order, all of its labels once, or the first
    `evaluation.batches` global batches. Their number follows from the set's size alone, so that all ranks make the same; where the
    samples end, rows without labels fill the last batch. Weigh by tokens, not by batches.
    """

    def __init__(self, pool: Samples, *, batches: int, global_batch: int, share: Share, pin: bool) -> None:
        self._pool, self._global_batch, self._share, self._pin = pool, global_batch, share, pin
        self._count = min(batches, -(-len(pool) // global_batch))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        """Raises DataError for damaged tokens."""
        for number in range(self._count):
            yield self._batch(number)

    def _batch(self, number: int) -> Batch:
        at = self._share.of(number * self._global_batch, self._global_batch)
        return stack([self._sample(index) for index in at], self._share.micro_batch, pin=self._pin)

    def _sample(self, index: int) -> Sample:
        return self._pool[index] if index < len(self._pool) else self._nothing()

    def _nothing(self) -> Sample:
        """A row without labels, of tokens that are in the vocabulary."""
        first = self._pool[0]
        zeros = np.zeros_like(first.inputs)
        along = None if first.positions is None else np.arange(len(zeros))
        return Sample(zeros, np.full_like(zeros, IGNORED), along, None if along is None else zeros)


def evaluation_batches(path: Path, job: JobConfig, *, data_rank: int, data_size: int, pin: bool = False) -> Evaluation:
    """The batches of one evaluation set for a data-parallel rank. Raises DataError, and ConfigError where it does not fit the job."""
    share = Share(data_rank, data_size, job.training.micro_batch)
    pool = _pool(path, job, whole=True)
    return Evaluation(pool, batches=job.evaluation.batches, global_batch=job.training.global_batch, share=share, pin=pin)
