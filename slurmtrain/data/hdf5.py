"""Tokens of an HDF5 file:

    tokens      whole numbers, one dimension
    documents   whole numbers, one dimension: the first token of each document, then the number of tokens (optional: one document)
    answers     a byte for each token: 1 where it belongs to an answer (optional)
    vocab, eod  attributes of the file (optional)

Contiguous datasets are mapped into memory and cost as little as any file; chunked and compressed ones are read by h5py, which lets one
thread of a process into its library at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash

from slurmtrain.data.source import between, check_range
from slurmtrain.data.summary import Summary
from slurmtrain.data.tokens import mapped
from slurmtrain.errors import DataError, one_line

TOKENS, DOCUMENTS, ANSWERS = "tokens", "documents", "answers"
_ENDS = 4096
_FAULTS = (OSError, TypeError, ValueError, RuntimeError, LookupError, ArithmeticError, MemoryError)
"""What h5py raises for a file that is damaged somewhere."""


class Hdf5Tokens:
    """A file of tokens; a Source. `vocab` bounds the tokens where the file tells none."""

    def __init__(self, path: Path, summary: Summary, arrays: dict[str, Any], vocab: int | None) -> None:
        self._path, self._summary = path, summary
        self._tokens, self._marks = arrays[TOKENS], arrays.get(ANSWERS)
        self._offsets = arrays.get(DOCUMENTS, np.array([0, summary.tokens], np.int64))
        self._vocab = summary.vocab if summary.vocab is not None else vocab

    @classmethod
    def open(cls, path: Path, *, vocab: int | None = None) -> Hdf5Tokens:
        """Raises DataError: missing, not HDF5, damaged."""
        arrays, summary = _opened(path)
        return cls(path, summary, arrays, vocab)

    @property
    def summary(self) -> Summary:
        return self._summary

    def read(self, start: int, count: int) -> np.ndarray:
        """`count` tokens from position `start` on, as int64. Raises DataError for tokens out of range."""
        assert 0 <= start <= start + count <= self._summary.tokens, (start, count, self._summary.tokens)
        tokens = np.asarray(self._part(self._tokens, start, count), dtype=np.int64)
        check_range(tokens, start, self._vocab, self._path)
        return tokens

    def _part(self, array: Any, start: int, count: int) -> np.ndarray:
        try:
            return np.asarray(array[start : start + count])
        except _FAULTS as error:
            raise DataError(f"{self._path}: damaged: {one_line(str(error), 160)}") from error

    def answers(self, start: int, count: int) -> np.ndarray:
        assert self._marks is not None, f"{self._path} has no answers"
        return np.asarray(self._part(self._marks, start, count), dtype=np.bool_)

    def starts(self, begin: int, end: int) -> np.ndarray:
        return between(self._offsets[:-1], begin, end)

    def bounds(self, number: int) -> tuple[int, int]:
        """Where a document begins and ends. Raises DataError for offsets that are not in the file."""
        assert 0 <= number < self._summary.documents, (number, self._summary.documents)
        start, stop = int(self._offsets[number]), int(self._offsets[number + 1])
        if not 0 <= start <= stop <= self._summary.tokens:
            raise DataError(f"{self._path}: damaged: document {number} runs from token {start} to {stop}")
        return start, stop


def summarize_file(path: Path) -> Summary:
    """Raises DataError: missing, not HDF5, damaged."""
    return _opened(path)[1]


def _opened(path: Path) -> tuple[dict[str, Any], Summary]:
    """The datasets, mapped where they can be, and what the file says of itself."""
    try:
        return _read(path)
    except _FAULTS as error:
        raise DataError(f"{path}: not an HDF5 file of tokens: {one_line(str(error), 160)}") from error


def _read(path: Path) -> tuple[dict[str, Any], Summary]:
    file = h5py.File(path, "r", locking=False)
    arrays = {name: _array(path, file[name]) for name in (TOKENS, DOCUMENTS, ANSWERS) if name in file}
    attributes = {name: int(file.attrs[name]) if name in file.attrs else None for name in ("vocab", "eod")}
    _check(path, arrays)
    tokens, offsets = arrays[TOKENS], arrays.get(DOCUMENTS)
    if offsets is not None:
        arrays[DOCUMENTS] = offsets if isinstance(offsets, np.ndarray) and offsets.dtype == np.int64 else np.asarray(offsets, np.int64)
    ends = [np.asarray(tokens[:_ENDS], "<i8"), np.asarray(tokens[-_ENDS:], "<i8")]
    total = xxhash.xxh3_64_hexdigest(b"".join([str(len(tokens)).encode(), *(end.tobytes() for end in ends)]))
    documents = 1 if offsets is None else len(offsets) - 1
    return arrays, Summary(path, "hdf5", len(tokens), documents, attributes["vocab"], attributes["eod"], ANSWERS in arrays, total)


def _array(path: Path, dataset: Any) -> Any:
    """The dataset, mapped where its bytes lie in one piece of this file."""
    if not isinstance(dataset, h5py.Dataset) or dataset.ndim != 1 or dataset.dtype.kind not in "iu":
        raise ValueError(f"{getattr(dataset, 'name', dataset)} is not a row of whole numbers")
    at = dataset.id.get_offset()
    return dataset if at is None or dataset.external or dataset.is_virtual else mapped(path, dataset.dtype, len(dataset), at)


def _check(path: Path, arrays: dict[str, Any]) -> None:
    tokens, offsets, marks = (arrays.get(name) for name in (TOKENS, DOCUMENTS, ANSWERS))
    if tokens is None:
        raise DataError(f"{path}: has no dataset {TOKENS!r}")
    if offsets is not None and (len(offsets) < 2 or int(offsets[0]) != 0 or int(offsets[-1]) != len(tokens)):
        raise DataError(f"{path}: damaged: {DOCUMENTS!r} does not run from 0 to {len(tokens)} tokens")
    if marks is not None and len(marks) != len(tokens):
        raise DataError(f"{path}: damaged: {ANSWERS!r} has {len(marks)} numbers, {TOKENS!r} has {len(tokens)}")
