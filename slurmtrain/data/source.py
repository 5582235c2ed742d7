"""Tokens behind one door, whatever their format."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Protocol

import numpy as np

from slurmtrain.data.summary import Summary, format_of
from slurmtrain.errors import DataError


class Source(Protocol):
    """Documents of tokens, one after another, read where they lie. Opening costs the same whatever the size.

    Every method may raise DataError for what turns out damaged.
    """

    @property
    def summary(self) -> Summary: ...

    def read(self, start: int, count: int) -> np.ndarray:
        """`count` tokens from position `start` on, as int64; each below the vocabulary."""

    def answers(self, start: int, count: int) -> np.ndarray:
        """For each of these tokens whether it belongs to an answer (bool); only where the summary says that there are answers."""

    def starts(self, begin: int, end: int) -> np.ndarray:
        """First tokens d of the documents with begin < d < end, ascending, each once, as int64."""

    def bounds(self, number: int) -> tuple[int, int]:
        """First token of a document, and the first behind it."""


def open_source(path: Path, *, vocab: int | None = None) -> Source:
    """Map the tokens of a folder, a Megatron pair or an HDF5 file. `vocab`: bound of the tokens where the format tells none.

    Raises DataError: missing, short, damaged, of a newer version.
    """
    kind = format_of(path)
    if kind == "folder":
        from slurmtrain.data.tokens import TokenFolder  # noqa: PLC0415 one format, one module

        return TokenFolder.open(path)
    if kind == "megatron":
        from slurmtrain.data.megatron import MegatronPair  # noqa: PLC0415

        return MegatronPair.open(path, vocab=vocab)
    from slurmtrain.data.hdf5 import Hdf5Tokens  # noqa: PLC0415 h5py is slow to import

    return Hdf5Tokens.open(path, vocab=vocab)


def check_range(tokens: np.ndarray, start: int, vocab: int | None, path: Path) -> None:
    """Raises DataError for a token that is negative or not below the vocabulary."""
    if not len(tokens):
        return
    if vocab is not None and (top := int(tokens.max())) >= vocab:
        at = start + int(tokens.argmax())
        raise DataError(f"{path}: token {top} at position {at} is not below the vocabulary of {vocab}: damaged, or of another tokenizer")
    if (least := int(tokens.min())) < 0:
        raise DataError(f"{path}: damaged: token {least} at position {start + int(tokens.argmin())} is negative")


def between(offsets: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Those of ascending offsets with begin < offset < end, each once.

    By bisect, which reads a few numbers: numpy's search copies a whole array that does not begin at a multiple of 8 bytes.
    """
    low, high = bisect_right(offsets, begin), bisect_left(offsets, end)
    return np.unique(np.asarray(offsets[low:high], np.int64))
