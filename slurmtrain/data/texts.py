"""Texts to read: files and folders of them, in a fixed order; lines of JSON with a text, a prompt and its response, or a conversation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from slurmtrain.errors import UserError

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
LINES = (".jsonl",)
PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"PAR1": "parquet"}
"""First bytes of files that hold text, and cannot be read as text."""
_READ_BYTES = 16 << 20
_SHOWN_KEYS = 8
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Text:
    """One document. `answers`: ranges of its characters on which a loss is wanted, ascending; None where nothing is marked."""

    text: str
    answers: Spans | None = None


Advance = Callable[[int], None]
"""Told how many more bytes have been read."""


def check_paths(paths: Iterable[Path]) -> None:
    """Raise UserError for a path that is not there, or is neither file nor folder."""
    for path in paths:
        try:
            there = path.is_dir() or path.is_file()
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from error
        if not there:
            raise UserError(f"{path}: {'not a file or folder' if path.exists() else 'no such file or folder'}")


def find_texts(paths: Iterable[Path], suffixes: tuple[str, ...] = SUFFIXES) -> Iterator[Path]:
    """The files to read, in their order. Raises UserError for a path that is not there or is no file."""
    seen: set[Path] = set()
    for path in paths:
        check_paths([path])
        for one in _walk(path, suffixes) if path.is_dir() else [path]:
            real = one.resolve()
            if real not in seen:
                seen.add(real)
                yield one


def _walk(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Text files below a folder in the order of their relative paths; links to folders are not followed, nor links to nothing.

    Raises UserError for a folder that cannot be read: what it holds would be lost unseen.
    """
    found = []
    for parent, folders, names in os.walk(folder, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in names:
            path = Path(parent, name)
            if path.suffix.lower() in suffixes and not name.startswith(".") and path.is_file():
                found.append(path)
    return iter(sorted(found, key=lambda path: path.relative_to(folder).as_posix()))


def _unreadable(error: OSError) -> NoReturn:
    raise UserError(f"{error.filename}: {error.strerror or error}: make it readable, or name what is to be read") from error


def blocks(path: Path, advance: Advance) -> Iterator[bytes]:
    """The bytes of a file, block by block. Raises UserError where it cannot be read."""
    try:
        with open(path, "rb") as file:
            while block := file.read(_READ_BYTES):
                yield block
                advance(len(block))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error


def whole(path: Path, advance: Advance) -> Text:
    """A file as one text; bytes that are not UTF-8 become U+FFFD. Raises UserError for a packed file: it would be nothing else."""
    data = b"".join(blocks(path, advance))
    _refuse_packed(data, path)
    return Text(data.decode(errors="replace"))


def _refuse_packed(begin: bytes, path: Path) -> None:
    for magic, name in PACKED.items():
        if begin.startswith(magic):
            raise UserError(f"{path}: is {name}, not text: unpack it first")


def lines(path: Path, read: Callable[[Any], Text], advance: Advance) -> Iterator[Text]:
    """The documents of a file of JSON lines; empty lines are left out.

    Raises UserError with file and line: not a JSON object, or `read` raised ValueError for it.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    _refuse_packed(line, path)
                if line.strip():
                    yield _read(line, read, f"{path}:{number}")
                advance(len(line))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error


def _read(line: bytes, read: Callable[[Any], Text], where: str) -> Text:
    try:
        raw = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON: {error}") from error
    except RecursionError as error:
        raise UserError(f"{where}: not JSON that can be read: too many brackets in each other") from error
    if not isinstance(raw, dict):
        raise UserError(f'{where}: not an object such as {{"text": "..."}}')
    try:
        return read(raw)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def text_of(key: str) -> Callable[[Any], Text]:
    """Reads the text of a JSON line under a key."""

    def read(raw: Any) -> Text:
        return Text(string(raw, key))

    return read


def string(raw: Any, *keys: str) -> str:
    """The text under the first of these keys that is there. Raises ValueError."""
    for key in keys:
        if isinstance(found := raw.get(key), str):
            return found
        if key in raw:
            raise ValueError(f"{key!r} is not a text")
    raise ValueError(f"has no {' or '.join(map(repr, keys))}, but {keys_of(raw)}")


def keys_of(raw: Any) -> str:
    """The first few keys of an object, for errors."""
    shown = ", ".join(repr(key) for key in list(raw)[:_SHOWN_KEYS]) or "nothing"
    return f"{shown} and {len(raw) - _SHOWN_KEYS} more" if len(raw) > _SHOWN_KEYS else shown
