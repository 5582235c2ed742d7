"""Tokens of a Megatron pair (`data.pair` says the format), read where they lie, and written.

The pointers of the index are used as they stand, in 64 bits; an index in which they have run over 32 bits (NVIDIA/Megatron-LM issues
1056 and 1672) is refused, not read wrong.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from pathlib import Path

import numpy as np

from slurmtrain.data.pair import DTYPES, HEAD, MAGIC, Pair, answers_of, bin_of, idx_of, read_pair
from slurmtrain.data.source import check_range
from slurmtrain.data.summary import Summary, summarize
from slurmtrain.data.tokens import mapped
from slurmtrain.errors import DataError

MOST_IN_SEQUENCE = 2**30
"""Sizes are int32; a longer document is written as several sequences."""


class MegatronPair:
    """A pair; a Source. The format tells no vocabulary: `vocab` bounds the tokens."""

    def __init__(self, pair: Pair, summary: Summary, vocab: int | None) -> None:
        idx = idx_of(pair.prefix)
        self._pair, self._summary, self._vocab = pair, summary, vocab
        self._tokens = mapped(bin_of(pair.prefix), pair.dtype, pair.tokens)
        self._sizes = mapped(idx, "<i4", pair.sequences, HEAD.size)
        self._pointers = mapped(idx, "<i8", pair.sequences, pair.pointers_at)
        self._firsts = mapped(idx, "<i8", pair.documents + 1, pair.documents_at)
        self._marks = mapped(answers_of(pair.prefix), "u1", pair.tokens) if pair.answers else None
        self._check()

    @classmethod
    def open(cls, path: Path, *, vocab: int | None = None) -> MegatronPair:
        """Map the files; costs the same whatever their size. Raises DataError: missing, short, damaged."""
        return cls(read_pair(path), summarize(path), vocab)

    def _check(self) -> None:
        """The last sequence ends where the .bin does, the last document with the last sequence."""
        pair = self._pair
        end = int(self._pointers[-1]) + int(self._sizes[-1]) * pair.item_bytes if pair.sequences else 0
        has = pair.tokens * pair.item_bytes
        if end != has:
            fault = "pointers that ran over 32 bits" if end < 0 or (has > end and has > 2**31) else "damaged"
            raise DataError(
                f"{idx_of(pair.prefix)}: {fault}: its last sequence ends at byte {end}, the .bin has {has}: write the pair again"
            )
        if pair.documents and not 0 <= int(self._firsts[0]) <= int(self._firsts[-1]) <= pair.sequences:
            raise DataError(f"{idx_of(pair.prefix)}: damaged: documents run from sequence {self._firsts[0]} to {self._firsts[-1]}")

    @property
    def summary(self) -> Summary:
        return self._summary

    def read(self, start: int, count: int) -> np.ndarray:
        """`count` tokens from position `start` on, as int64. Raises DataError for tokens out of range."""
        assert 0 <= start <= start + count <= self._pair.tokens, (start, count, self._pair.tokens)
        tokens = np.asarray(self._tokens[start : start + count], dtype=np.int64)
        check_range(tokens, start, self._vocab, bin_of(self._pair.prefix))
        return tokens

    def answers(self, start: int, count: int) -> np.ndarray:
        assert self._marks is not None, f"{self._pair.prefix} has no answers"
        return np.asarray(self._marks[start : start + count], dtype=np.bool_)

    def starts(self, begin: int, end: int) -> np.ndarray:
        item = self._pair.item_bytes
        low, high = bisect_right(self._pointers, begin * item), bisect_left(self._pointers, end * item)
        first, last = bisect_left(self._firsts, low), bisect_left(self._firsts, high)
        sequences = np.asarray(self._firsts[first:last])
        if len(sequences) and not 0 <= int(sequences.min()) <= int(sequences.max()) < self._pair.sequences:
            raise DataError(f"{idx_of(self._pair.prefix)}: damaged: documents begin with sequences that are not there")
        return np.unique(np.asarray(self._pointers[sequences], np.int64) // item)

    def bounds(self, number: int) -> tuple[int, int]:
        """Where a document begins and ends. Raises DataError for pointers that are not in the file."""
        assert 0 <= number < self._pair.documents, (number, self._pair.documents)
        start, stop = (self._position(int(self._firsts[at])) for at in (number, number + 1))
        if not 0 <= start <= stop <= self._pair.tokens:
            raise DataError(f"{idx_of(self._pair.prefix)}: damaged: document {number} runs from token {start} to {stop}")
        return start, stop

    def _position(self, sequence: int) -> int:
        """The first token of a sequence; behind the last one the number of tokens. Raises DataError for one that is before the first."""
        if sequence < 0:
            raise DataError(f"{idx_of(self._pair.prefix)}: damaged: a document begins with sequence {sequence}")
        if sequence >= self._pair.sequences:
            return self._pair.tokens
        return int(self._pointers[sequence]) // self._pair.item_bytes


def code_of(dtype: str) -> int:
    """Megatron's code of a numpy name.

    >>> code_of("<u2"), code_of("<i4")
    (8, 4)
    """
    return next(code for code, name in DTYPES.items() if name == dtype)


def pair_index(dtype: str, sizes: np.ndarray, firsts: np.ndarray) -> list[bytes]:
    """The .idx in pieces. sizes: int32 tokens of each sequence; firsts: first sequence of each document, then their number."""
    ends = np.cumsum(sizes, dtype=np.int64) * np.dtype(dtype).itemsize
    pointers = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(sizes) else ends
    head = HEAD.pack(MAGIC, 1, code_of(dtype), len(sizes), len(firsts))
    return [head, sizes.astype("<i4").tobytes(), pointers.astype("<i8").tobytes(), firsts.astype("<i8").tobytes()]
