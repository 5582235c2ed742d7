"""A folder of indexed tokens, memory-mapped. Format version 1, and 2 where it has one of the files in brackets:

    tokens.bin      the tokens of all documents, one after another, little-endian uint16 or uint32
    documents.bin   little-endian int64: the first token of each document, then the number of tokens (documents + 1 numbers)
    [answers.bin]   a byte for each token: 1 where it belongs to an answer (a loss is wanted on it), else 0
    [tokenizer.json] the tokenizer that made the tokens, as Hugging Face's `tokenizers` reads it
    index.json      {"v":1,"dtype":"uint16","tokens":N,"documents":M,"vocab":257,"eod":256,
                     "files":{"tokens.bin":{"size":..,"xxh3_64":".."},"documents.bin":{..}}}

`vocab`: every token is below it; `eod`: the token that ends each document. `xxh3_64`: of the whole file, 16 hex digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from slurmtrain.data.index import ANSWERS_NAME, DOCUMENTS_NAME, TOKENS_NAME, TokenIndex, TokenType, check_files, read_index
from slurmtrain.data.source import between, check_range
from slurmtrain.data.summary import Summary
from slurmtrain.errors import DataError

_NUMPY: dict[str, str] = {"uint16": "<u2", "uint32": "<u4"}
_READ_BYTES = 16 << 20


def numpy_dtype(name: TokenType) -> np.dtype[Any]:
    """The element type of tokens.bin."""
    return np.dtype(_NUMPY[name])


class TokenFolder:
    """Tokens of a folder, read where they lie; a Source."""

    def __init__(self, path: Path, index: TokenIndex, tokens: np.ndarray, offsets: np.ndarray, marks: np.ndarray | None) -> None:
        self.path, self.index = path, index
        self._tokens, self._offsets, self._marks = tokens, offsets, marks

    @classmethod
    def open(cls, path: Path) -> TokenFolder:
        """Map the files of a folder; costs the same whatever their size. Raises DataError: missing, short, damaged, newer version."""
        index = read_index(path)
        check_files(path, index)
        offsets = mapped(path / DOCUMENTS_NAME, "<i8", index.documents + 1)
        if offsets[0] != 0 or offsets[-1] != index.tokens:
            raise DataError(f"{path / DOCUMENTS_NAME}: damaged: does not run from 0 to {index.tokens} tokens")
        marks = mapped(path / ANSWERS_NAME, "u1", index.tokens) if ANSWERS_NAME in index.files else None
        return cls(path, index, mapped(path / TOKENS_NAME, numpy_dtype(index.dtype), index.tokens), offsets, marks)

    def __len__(self) -> int:
        """Number of tokens."""
        return self.index.tokens

    @property
    def summary(self) -> Summary:
        index, total = self.index, self.index.files[TOKENS_NAME].xxh3_64
        return Summary(self.path, "folder", index.tokens, index.documents, index.vocab, index.eod, self._marks is not None, total)

    @property
    def documents(self) -> int:
        return self.index.documents

    @property
    def vocab(self) -> int:
        return self.index.vocab

    def read(self, start: int, count: int) -> np.ndarray:
        """`count` tokens from position `start` on, as int64. Raises DataError where a token is not below the vocabulary."""
        assert 0 <= start <= start + count <= len(self), (start, count, len(self))
        tokens = np.asarray(self._tokens[start : start + count], dtype=np.int64)
        check_range(tokens, start, self.vocab, self.path / TOKENS_NAME)
        return tokens

    def answers(self, start: int, count: int) -> np.ndarray:
        assert self._marks is not None, f"{self.path} has no answers"
        return np.asarray(self._marks[start : start + count], dtype=np.bool_)

    def starts(self, begin: int, end: int) -> np.ndarray:
        return between(self._offsets[:-1], begin, end)

    def bounds(self, number: int) -> tuple[int, int]:
        """Where a document begins and ends. Raises DataError for offsets that are not in the file."""
        assert 0 <= number < self.documents, (number, self.documents)
        start, stop = int(self._offsets[number]), int(self._offsets[number + 1])
        if not 0 <= start <= stop <= len(self):
            raise DataError(f"{self.path / DOCUMENTS_NAME}: damaged: document {number} runs from token {start} to {stop}")
        return start, stop

    def document(self, number: int) -> np.ndarray:
        """All tokens of a document, its end included, as int64."""
        start, stop = self.bounds(number)
        return self.read(start, stop - start)

    def verify(self) -> list[str]:
        """Files whose bytes are not those that were written; reads all of them."""
        return [
            f"{self.path / name}: damaged: its sum differs"
            for name, want in self.index.files.items()
            if sum_of(self.path / name) != want.xxh3_64
        ]


def mapped(path: Path, dtype: str | np.dtype[Any], count: int, offset: int = 0) -> np.ndarray:
    """`count` numbers of a file, memory-mapped; none where there are none (an empty file cannot be mapped)."""
    return np.asarray(np.memmap(path, dtype, "r", offset, (count,))) if count else np.empty(0, dtype)


def sum_of(path: Path) -> str:
    """xxh3_64 of a whole file, 16 hex digits."""
    total = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while block := file.read(_READ_BYTES):
            total.update(block)
    return str(total.hexdigest())
