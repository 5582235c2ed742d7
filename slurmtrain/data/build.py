"""Text files to a folder of indexed byte tokens: each byte is a token, 256 ends a document (vocabulary 257).

One file is one document. Folders are walked in full, in the order of their paths; of a folder the files with a suffix of
`SUFFIXES` are taken, hidden ones and `__pycache__` are not; a file that is named itself is taken whatever its suffix. Empty
files, and a file that comes a second time, are left out. The folder appears whole or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from slurmtrain.atomic import Disk, SystemDisk, to_json
from slurmtrain.data.index import DOCUMENTS_NAME, INDEX_NAME, TOKENS_NAME, DataFile, TokenIndex, read_index
from slurmtrain.data.tokens import numpy_dtype
from slurmtrain.errors import DataError, UserError

SUFFIXES = (
    ".c",
    ".cc",
    ".cfg",
    ".cpp",
    ".cu",
    ".h",
    ".hpp",
    ".json",
    ".md",
    ".py",
    ".pyi",
    ".rs",
    ".rst",
    ".sh",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
)
EOD = 256
VOCAB = 257
_READ_BYTES = 16 << 20


@dataclass(frozen=True)
class BuildResult:
    """What was built; `unchanged`: the folder was there already with the same content."""

    folder: Path
    tokens: int
    documents: int
    unchanged: bool = False


def build(paths: Sequence[Path], out: Path, *, force: bool = False, disk: Disk | None = None) -> BuildResult:
    """Build `out` from text files and folders.

    Raises UserError: a path that is not there, nothing to read, `out` taken by other tokens (`force` replaces them) or by
    something else (never replaced). Raises DataError when the disk refuses.
    """
    sources = list(find_texts(paths))
    if not sources:
        raise UserError(f"no text in {', '.join(map(str, paths))}: name files, or folders with files of {' '.join(SUFFIXES)}")
    _refuse_foreign(out)
    staging = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        index = _write_tokens(sources, staging)
        if not index.tokens:
            raise UserError(f"no text in {', '.join(map(str, paths))}: all files are empty")
        (disk or SystemDisk()).write(staging / INDEX_NAME, to_json(index.to_json()))
        unchanged = _publish(staging, out, index, disk or SystemDisk(), force=force)
    except OSError as error:
        raise DataError(f"{error.filename or out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return BuildResult(out, index.tokens, index.documents, unchanged)


def find_texts(paths: Iterable[Path]) -> Iterator[Path]:
    """The files to read, in their order. Raises UserError for a path that is not there or is no file."""
    seen: set[Path] = set()
    for path in paths:
        if path.is_dir():
            found: Iterable[Path] = _walk(path)
        elif path.is_file():
            found = [path]
        else:
            raise UserError(f"{path}: {'not a file or folder' if path.exists() else 'no such file or folder'}")
        for one in found:
            real = one.resolve()
            if real not in seen:
                seen.add(real)
                yield one


def _walk(folder: Path) -> Iterator[Path]:
    """Text files below a folder in the order of their relative paths; links to folders are not followed."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in names:
            path = Path(parent, name)
            if path.suffix.lower() in SUFFIXES and not name.startswith(".") and path.is_file():
                found.append(path)
    return iter(sorted(found, key=lambda path: path.relative_to(folder).as_posix()))


class _SummedFile:
    """Writes a new file and sums what goes through."""

    def __init__(self, path: Path) -> None:
        self._file, self._sum, self.size = open(path, "wb"), xxhash.xxh3_64(), 0  # noqa: SIM115 closed by finish

    def write(self, array: np.ndarray) -> None:
        data = array.tobytes()
        self._file.write(data)
        self._sum.update(data)
        self.size += len(data)

    def finish(self) -> DataFile:
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        return DataFile(self.size, str(self._sum.hexdigest()))


def _write_tokens(sources: Iterable[Path], staging: Path) -> TokenIndex:
    """Write tokens.bin and documents.bin, durable."""
    kind = numpy_dtype("uint16")
    tokens, documents = _SummedFile(staging / TOKENS_NAME), _SummedFile(staging / DOCUMENTS_NAME)
    end = np.array([EOD], kind)
    ends = [0]
    for path in sources:
        length = 0
        for block in _blocks(path):
            tokens.write(np.frombuffer(block, np.uint8).astype(kind))
            length += len(block)
        if length:
            tokens.write(end)
            ends.append(ends[-1] + length + 1)
    documents.write(np.array(ends, "<i8"))
    files = {TOKENS_NAME: tokens.finish(), DOCUMENTS_NAME: documents.finish()}
    return TokenIndex("uint16", ends[-1], len(ends) - 1, VOCAB, EOD, files)


def _blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a text, block by block. Raises UserError where it cannot be read."""
    try:
        with open(path, "rb") as file:
            while block := file.read(_READ_BYTES):
                yield block
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error


def _index_of(folder: Path) -> TokenIndex | None:
    """The index of a folder of tokens; None where there is none, or one that is damaged."""
    try:
        return read_index(folder)
    except DataError:
        return None


def _refuse_foreign(out: Path) -> None:
    """A folder that holds something else than tokens is never replaced."""
    if out.is_dir():
        if (out / INDEX_NAME).exists() or not any(out.iterdir()):
            return
        raise UserError(f"{out}: holds files that are not tokens: choose another --out")
    if out.exists() or out.is_symlink():
        raise UserError(f"{out}: is there and is not a folder: choose another --out")


def _publish(staging: Path, out: Path, index: TokenIndex, disk: Disk, *, force: bool) -> bool:
    """Rename to the final name; True when the same content is there already."""
    if out.exists() and any(out.iterdir()):
        if _index_of(out) == index:
            return True
        if not force:
            raise UserError(f"{out}: holds other tokens: choose another --out, or give --force to replace them")
    old = out.with_name(f".{out.name}.{os.getpid()}.old")
    if out.exists():
        out.rename(old)
    try:
        disk.publish_dir(staging, out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
    return False
