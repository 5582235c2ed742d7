"""What a folder of tokens says of itself, read without its tokens and without numpy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from slurmtrain.errors import DataError

INDEX_NAME = "index.json"
TOKENS_NAME = "tokens.bin"
DOCUMENTS_NAME = "documents.bin"
ANSWERS_NAME = "answers.bin"
TOKENIZER_NAME = "tokenizer.json"
INDEX_VERSION = 2
"""Written as 1 where a folder has neither answers nor a tokenizer: releases that know version 1 alone read it."""
TokenType = Literal["uint16", "uint32"]
ITEM_BYTES: Mapping[str, int] = {"uint16": 2, "uint32": 4}


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

    @property
    def version(self) -> int:
        """The least that tells all."""
        return 2 if self.files.keys() & {ANSWERS_NAME, TOKENIZER_NAME} else 1

    def to_json(self) -> dict[str, Any]:
        return {"v": self.version, **asdict(self)}

    def sound(self) -> bool:
        """Whether sizes and vocabulary agree."""
        sizes = {TOKENS_NAME: self.tokens * ITEM_BYTES[self.dtype], DOCUMENTS_NAME: (self.documents + 1) * 8, ANSWERS_NAME: self.tokens}
        told = {name: one.size for name, one in self.files.items() if name != TOKENIZER_NAME}
        return {**sizes, **told} == sizes and {TOKENS_NAME, DOCUMENTS_NAME} <= told.keys() and 0 <= self.eod < self.vocab


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
        sound = version == index.version and index.sound()
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged: {type(error).__name__}: {error}") from error
    if not sound:
        raise DataError(f"{path}: damaged: version, sizes or vocabulary contradict each other")
    return index


def check_files(folder: Path, index: TokenIndex) -> None:
    """The files are there and as long as they were written. Raises DataError."""
    for name, want in index.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            raise DataError(f"{folder / name}: {error.strerror or error}: build the folder again") from error
        if size != want.size:
            fault = "short" if size < want.size else "damaged"
            raise DataError(f"{folder / name}: {fault}: {size} bytes, {want.size} were written: build the folder again")
