"""Samples of T tokens cut from a source, with their labels; where documents are separate, with positions and document numbers too.

Sample i is the tokens i T .. i T + T - 1; the label of a token is the token after it, so that a sample reads T + 1 tokens.

    joined     the source is one text; (N - 1) // T whole samples
    separate   no token is left out: (N - 1) / T samples, rounded up, the last one padded. A document that a sample's border cuts
               goes on as a document of its own: positions run from 0 in each piece and are always below T. The last token of a
               document has no label, for what comes after it is another document; that its end token is foretold, the token
               before it has learned.
    answers    a label counts where the label itself, not the token that foretells it, is marked as answer
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurmtrain.data.source import Source
from slurmtrain.errors import DataError

IGNORED = -100
"""Label of a token that has no loss, as in torch's cross-entropy."""


@dataclass(frozen=True)
class Sample:
    """Vectors [T], int64. positions, documents: only where documents are separate; padding is a document of its own."""

    inputs: np.ndarray
    labels: np.ndarray
    positions: np.ndarray | None = None
    documents: np.ndarray | None = None


class Samples:
    """The samples of one source. `whole`: the last one is padded, so that every label is there, also where documents are joined."""

    def __init__(self, source: Source, length: int, *, separate: bool = False, answers: bool = False, whole: bool = False) -> None:
        told = source.summary
        self.source, self.length, self.separate, self._answers = source, length, separate, answers
        self._tokens, self._pad = told.tokens, told.eod or 0
        self.count = -(-(told.tokens - 1) // length) if separate or whole else (told.tokens - 1) // length
        if self.count < 1:
            least = 2 if separate or whole else length + 1
            raise DataError(f"{told.path}: {told.tokens} tokens, a sample of sequence length {length} takes {least}")
        if answers and not told.answers:
            raise DataError(f"{told.path}: has no marked answers: build it with --answers, or leave loss_on out")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        """Raises DataError for damaged tokens."""
        assert 0 <= index < self.count, (index, self.count)
        start = index * self.length
        count = min(self.length + 1, self._tokens - start)
        tokens = self.source.read(start, count)
        inputs, labels = np.full(self.length, self._pad, np.int64), np.full(self.length, IGNORED, np.int64)
        inputs[:count] = tokens[: self.length]
        labels[: count - 1] = tokens[1:]
        if self._answers:
            labels[: count - 1][~self.source.answers(start + 1, count - 1)] = IGNORED
        if not self.separate:
            return Sample(inputs, labels)
        starts = self.source.starts(start, start + count) - start
        labels[starts - 1] = IGNORED
        return Sample(inputs, labels, *_numbered(starts, count, self.length))


def _numbered(starts: np.ndarray, count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(positions, documents) [T] of a sample in which documents begin at `starts`, and of whose tokens `count` are there."""
    firsts = np.concatenate([[0], starts[starts < length], [count] if count < length else []]).astype(np.int64)
    lengths = np.diff(firsts, append=length)
    return np.arange(length) - np.repeat(firsts, lengths), np.repeat(np.arange(len(firsts)), lengths)
