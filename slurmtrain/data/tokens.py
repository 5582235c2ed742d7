"""A folder of indexed tokens, memory-mapped. Format version 1:

    tokens.bin      the tokens of all documents, one after another, little-endian uint16 or uint32
    documents.bin   little-endian int64: the first token of each document, then the number of tokens (documents + 1 numbers)
    index.json      {"v":1,"dtype":"uint16","tokens":N,"documents":M,"vocab":257,"eod":256,
                     "files":{"tokens.bin":{"size":..,"xxh3_64":".."},"documents.bin":{..}}}

`vocab`: every token is below it; `eod`: the token that ends each document. `xxh3_64`: of the whole file, 16 hex digits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from slurmtrain.errors import DataError

INDEX_NAME = "index.json"
TOKENS_NAME = "tokens.bin"
DOCUMENTS_NAME = "documents.bin"
INDEX_VERSION = 1
TokenType = Literal["uint16", "uint32"]
_NUMPY: dict[str, str] = {"uint16": "<u2", "uint32": "<u4"}
_READ_BYTES = 16 << 20


@dataclass(frozen=True)
class DataFile:
    """Size in bytes and sum of one file."""

    size: int
    xxh3_64: str


@dataclass(frozen=True)
class TokenIndex:
    """What index.json says."""

    dtype: TokenType
    tokens: int
    documents: int
    vocab: int
    eod: int
    files: Mapping[str, DataFile]

    def to_json(self) -> dict[str, Any]:
        return {"v": INDEX_VERSION, **asdict(self)}


def numpy_dtype(name: TokenType) -> np.dtype[Any]:
    """The element type of tokens.bin."""
    return np.dtype(_NUMPY[name])


def read_index(folder: Path) -> TokenIndex:
    """Read and check index.json. Raises DataError: missing, of a newer version, damaged."""
    path = folder / INDEX_NAME
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}: build the folder with `slurmtrain data build`") from error
    except ValueError as error:
        raise DataError(f"{path}: damaged: {error}") from error
    version = raw.pop("v", None) if isinstance(raw, dict) else None
    if isinstance(version, int) and version > INDEX_VERSION:
        raise DataError(f"{path}: format version {version}; this release reads up to {INDEX_VERSION}: use a newer slurmtrain")
    try:
        files = {name: DataFile(**one) for name, one in raw.pop("files").items()}
        index = TokenIndex(files=files, **raw)
        sizes = {TOKENS_NAME: index.tokens * numpy_dtype(index.dtype).itemsize, DOCUMENTS_NAME: (index.documents + 1) * 8}
        sound = version == INDEX_VERSION and {name: one.size for name, one in files.items()} == sizes and 0 <= index.eod < index.vocab
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged: {type(error).__name__}: {error}") from error
    if not sound:
        raise DataError(f"{path}: damaged: version, sizes or vocabulary contradict each other")
    return index


class TokenFolder:
    """Tokens of a folder, read where they lie."""

    def __init__(self, path: Path, index: TokenIndex, tokens: np.ndarray, offsets: np.ndarray) -> None:
        self.path, self.index = path, index
        self._tokens, self._offsets = tokens, offsets

    @classmethod
    def open(cls, path: Path) -> TokenFolder:
        """Map the files of a folder; costs the same whatever their size. Raises DataError: missing, short, damaged, newer version."""
        index = read_index(path)
        for name, want in index.files.items():
            try:
                size = (path / name).stat().st_size
            except OSError as error:
                raise DataError(f"{path / name}: {error.strerror or error}: build the folder again") from error
            if size != want.size:
                fault = "short" if size < want.size else "damaged"
                raise DataError(f"{path / name}: {fault}: {size} bytes, {want.size} were written: build the folder again")
        kind = numpy_dtype(index.dtype)
        offsets = np.memmap(path / DOCUMENTS_NAME, "<i8", "r")
        tokens = np.memmap(path / TOKENS_NAME, kind, "r") if index.tokens else np.empty(0, kind)
        if offsets[0] != 0 or offsets[-1] != index.tokens:
            raise DataError(f"{path / DOCUMENTS_NAME}: damaged: does not run from 0 to {index.tokens} tokens")
        return cls(path, index, tokens, offsets)

    def __len__(self) -> int:
        """Number of tokens."""
        return self.index.tokens

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
        if count and (top := int(tokens.max())) >= self.vocab:
            at = start + int(tokens.argmax())
            raise DataError(f"{self.path / TOKENS_NAME}: damaged: token {top} at position {at} is not below the vocabulary of {self.vocab}")
        return tokens

    def document(self, number: int) -> np.ndarray:
        """All tokens of a document, its end included, as int64."""
        assert 0 <= number < self.documents, (number, self.documents)
        start, stop = int(self._offsets[number]), int(self._offsets[number + 1])
        if not 0 <= start <= stop <= len(self):
            raise DataError(f"{self.path / DOCUMENTS_NAME}: damaged: document {number} runs from token {start} to {stop}")
        return self.read(start, stop - start)

    def verify(self) -> list[str]:
        """Files whose bytes are not those that were written; reads all of them."""
        return [
            f"{self.path / name}: damaged: its sum differs"
            for name, want in self.index.files.items()
            if sum_of(self.path / name) != want.xxh3_64
        ]


def sum_of(path: Path) -> str:
    """xxh3_64 of a whole file, 16 hex digits."""
    total = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while block := file.read(_READ_BYTES):
            total.update(block)
    return str(total.hexdigest())
