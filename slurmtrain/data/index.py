"""What a folder of tokens says of itself, read without its tokens: the login node asks too whether they fit a job. No numpy here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from slurmtrain.config.job import JobConfig
from slurmtrain.errors import ConfigError, DataError

INDEX_NAME = "index.json"
TOKENS_NAME = "tokens.bin"
DOCUMENTS_NAME = "documents.bin"
INDEX_VERSION = 1
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

    def to_json(self) -> dict[str, Any]:
        return {"v": INDEX_VERSION, **asdict(self)}


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
        sizes = {TOKENS_NAME: index.tokens * ITEM_BYTES[index.dtype], DOCUMENTS_NAME: (index.documents + 1) * 8}
        sound = version == INDEX_VERSION and {name: one.size for name, one in files.items()} == sizes and 0 <= index.eod < index.vocab
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


def check_fits(index: TokenIndex, job: JobConfig, *, where: str = "job") -> None:
    """The model knows all tokens, and there are enough for one sample. Raises ConfigError with what would do."""
    if index.vocab > job.model.vocab:
        problem = f"the tokens in {job.data.path} have a vocabulary of {index.vocab}: use {index.vocab} or more"
        raise ConfigError(problem, where=where, key="model.vocab", value=job.model.vocab)
    length = job.training.sequence_length
    if index.tokens <= length:
        has = f"a sample takes {length + 1} tokens, {job.data.path} has {index.tokens}"
        problem = f"{has}: use {max(1, index.tokens - 1)} or less, or more text"
        raise ConfigError(problem, where=where, key="training.sequence_length", value=length)
