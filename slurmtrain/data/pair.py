"""The head of a Megatron pair PREFIX.bin, PREFIX.idx, read without numpy. The .idx, all little-endian:

    "MMIDIDX\\0\\0"   9 bytes
    version           uint64, 1
    dtype             uint8: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 float64, 7 float32, 8 uint16
    sequences S       uint64
    documents D       uint64: documents + 1
    sizes             S x int32: tokens of each sequence
    pointers          S x int64: first byte of each sequence in the .bin
    document index    D x int64: first sequence of each document, then S
    modes             S x int8, only in multimodal data

(NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py.) The .bin is the tokens of all sequences, one after another.
Beside them may lie PREFIX.answers.bin: a byte for each token, 1 where it belongs to an answer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
HEAD = struct.Struct("<9sQBQQ")
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Code to numpy's name; 6 and 7 are floating point: no tokens."""
_BIN, _IDX, _ANSWERS = ".bin", ".idx", ".answers.bin"


@dataclass(frozen=True)
class Pair:
    """A pair on disk. `prefix`: path without .bin and .idx; `dtype`: numpy's name."""

    prefix: Path
    dtype: str
    sequences: int
    documents: int
    tokens: int
    answers: bool

    @property
    def item_bytes(self) -> int:
        return int(self.dtype[-1])

    @property
    def pointers_at(self) -> int:
        """First byte of the pointers."""
        return HEAD.size + 4 * self.sequences

    @property
    def documents_at(self) -> int:
        return self.pointers_at + 8 * self.sequences


def prefix_of(path: Path) -> Path:
    """The prefix, from itself or from the name of either file.

    >>> prefix_of(Path("a/web.idx")).as_posix(), prefix_of(Path("a/web.v1")).as_posix()
    ('a/web', 'a/web.v1')
    """
    return path.with_suffix("") if path.suffix in {_BIN, _IDX} else path


def bin_of(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + _BIN)


def idx_of(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + _IDX)


def answers_of(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + _ANSWERS)


def read_pair(path: Path) -> Pair:
    """Read and check the head. Raises DataError: missing, not a Megatron index, damaged, floating point."""
    prefix = prefix_of(path)
    idx = idx_of(prefix)
    with_sizes = {}
    try:
        with open(idx, "rb") as file:
            head = file.read(HEAD.size)
        for one in (idx, bin_of(prefix)):
            with_sizes[one] = one.stat().st_size
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror or error}") from error
    dtype, sequences, documents = _told(idx, head)
    found = with_sizes[idx]
    plain = HEAD.size + 12 * sequences + 8 * documents
    if found not in {plain, plain + sequences}:
        raise DataError(f"{idx}: damaged: {found} bytes, {sequences} sequences and {documents - 1} documents take {plain}")
    tokens, rest = divmod(with_sizes[bin_of(prefix)], int(dtype[-1]))
    if rest:
        raise DataError(f"{bin_of(prefix)}: short: {with_sizes[bin_of(prefix)]} bytes are no whole number of {dtype[1:]} tokens")
    return Pair(prefix, dtype, sequences, documents - 1, tokens, _has_answers(prefix, tokens))


def _told(idx: Path, head: bytes) -> tuple[str, int, int]:
    if len(head) < HEAD.size or not head.startswith(MAGIC):
        raise DataError(f"{idx}: not the index of a Megatron pair (it begins with MMIDIDX)")
    _, version, code, sequences, documents = HEAD.unpack(head)
    if version != 1:
        raise DataError(f"{idx}: version {version} of Megatron's index; this release reads 1")
    if code not in DTYPES:
        raise DataError(f"{idx}: dtype code {code} is not of whole numbers: tokens have one of {', '.join(map(str, DTYPES))}")
    if not documents:
        raise DataError(f"{idx}: damaged: no document index")
    return DTYPES[code], sequences, documents


def _has_answers(prefix: Path, tokens: int) -> bool:
    path = answers_of(prefix)
    if not path.exists():
        return False
    if (size := path.stat().st_size) != tokens:
        raise DataError(f"{path}: {size} bytes, one for each of {tokens} tokens are needed")
    return True
