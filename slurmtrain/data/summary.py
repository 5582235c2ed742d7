"""What tokens say of themselves, whatever their format: the login node asks too whether they fit a job. No numpy here but for HDF5."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import xxhash

from slurmtrain.config.data import DataConfig
from slurmtrain.config.job import JobConfig
from slurmtrain.data.index import ANSWERS_NAME, TOKENS_NAME, check_files, read_index
from slurmtrain.data.pair import idx_of, prefix_of, read_pair
from slurmtrain.errors import ConfigError, DataError

Format = Literal["folder", "megatron", "hdf5"]
HDF5_SUFFIXES = (".h5", ".hdf5")
_TAIL_BYTES = 4096


@dataclass(frozen=True)
class Summary:
    """`vocab`, `eod`: None where the format does not tell them; `sum`: changes with the tokens, and not with where they lie."""

    path: Path
    format: Format
    tokens: int
    documents: int
    vocab: int | None
    eod: int | None
    answers: bool
    sum: str


def format_of(path: Path) -> Format:
    """Raises DataError for what is none of them."""
    if path.is_dir():
        return "folder"
    if path.suffix in HDF5_SUFFIXES and path.is_file():
        return "hdf5"
    if idx_of(prefix_of(path)).is_file():
        return "megatron"
    kinds = "no such folder, .bin/.idx pair or HDF5 file of tokens"
    raise DataError(f"{path}: {kinds}: build it by slurmtrain data build PATH... --out {path}")


def summarize(path: Path) -> Summary:
    """Read and check what can be without reading the tokens. Raises DataError."""
    kind = format_of(path)
    if kind == "hdf5":
        from slurmtrain.data.hdf5 import summarize_file  # noqa: PLC0415 h5py brings numpy

        return summarize_file(path)
    return _folder(path) if kind == "folder" else _pair(path)


def _folder(path: Path) -> Summary:
    index = read_index(path)
    check_files(path, index)
    files = index.files
    return Summary(path, "folder", index.tokens, index.documents, index.vocab, index.eod, ANSWERS_NAME in files, files[TOKENS_NAME].xxh3_64)


def _pair(path: Path) -> Summary:
    pair = read_pair(path)
    with open(idx_of(pair.prefix), "rb") as file:
        told = file.read(_TAIL_BYTES)
        file.seek(max(0, idx_of(pair.prefix).stat().st_size - _TAIL_BYTES))
        told += file.read()
    total = xxhash.xxh3_64_hexdigest(told + str(pair.tokens).encode())
    return Summary(pair.prefix, "megatron", pair.tokens, pair.documents, None, None, pair.answers, total)


def fingerprint(sums: Sequence[str], data: DataConfig) -> str:
    """What a position counts in, from the sources' sums: of one joined source its own, else a sum over all that says which sample comes
    where.
    """
    separate = data.documents == "separate"
    if len(sums) == 1 and not separate:
        return sums[0]
    told = [separate, *([total, one.weight] for total, one in zip(sums, data.mixture, strict=True))]
    return xxhash.xxh3_64_hexdigest(json.dumps(told).encode())


def fingerprint_of(job: JobConfig) -> str:
    """The same, of the sources where they lie. Raises DataError."""
    return fingerprint([summarize(one.path).sum for one in job.data.mixture], job.data)


def least_tokens(job: JobConfig) -> int:
    """Fewer make no sample: one of T + 1 where documents are joined, and a token with its label where they are separate."""
    return 2 if job.data.documents == "separate" else job.training.sequence_length + 1


def check_data(job: JobConfig, *, where: str = "job") -> None:
    """All sources and evaluation sets are there and fit the job. Raises ConfigError with what would do."""
    single = job.data.path is not None
    for number, source in enumerate(job.data.mixture):
        _check(source.path, job, "data.path" if single else f"data.sources[{number}].path", least_tokens(job), where)
    for name, path in job.evaluation.sets.items():
        _check(path, job, f"evaluation.sets.{name}", 2, where)


def _check(path: Path, job: JobConfig, key: str, least: int, where: str) -> None:
    try:
        check_fits(summarize(path), job, least=least, key=key, where=where)
    except DataError as error:
        raise ConfigError(str(error), where=where, key=key) from None


def check_fits(told: Summary, job: JobConfig, *, least: int | None = None, key: str = "data.path", where: str = "job") -> None:
    """The model knows all tokens, there are enough for one sample, and answers are marked where they are asked for.

    Raises ConfigError with what would do.
    """
    if told.vocab is not None and told.vocab > job.model.vocab:
        problem = f"the tokens in {told.path} have a vocabulary of {told.vocab}: use {told.vocab} or more"
        raise ConfigError(problem, where=where, key="model.vocab", value=job.model.vocab)
    if job.data.loss_on == "answers" and not told.answers:
        problem = f"{told.path} has no marked answers: build it with --answers, or leave loss_on out"
        raise ConfigError(problem, where=where, key="data.loss_on", value="answers")
    least = least_tokens(job) if least is None else least
    if told.tokens >= least:
        return
    if told.tokens < 2 or least == 2:
        raise ConfigError(f"has {told.tokens} tokens, at least {least} are needed", where=where, key=key, value=str(told.path))
    has = f"a sample takes {least} tokens, {told.path} has {told.tokens}"
    problem = f"{has}: use {told.tokens - 1} or less, or more text"
    raise ConfigError(problem, where=where, key="training.sequence_length", value=job.training.sequence_length)
