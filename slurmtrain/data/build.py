"""Texts to tokens: files and folders, or JSON lines; bytes, or a tokenizer; with marks on answers where they are asked for.

One file is one document, or with a key, or with answers, one JSON line is. Folders are walked in full, in the order of their paths; of
a folder the files with a suffix of `SUFFIXES` (JSON lines: .jsonl) are taken, hidden ones and `__pycache__` are not; a file that is
named itself is taken whatever its suffix. Empty texts, and a file that comes a second time, are left out. What is built appears whole
or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slurmtrain.atomic import Disk
from slurmtrain.data.chat import answers_of
from slurmtrain.data.encode import BYTE_EOD, Bytes, Encoder
from slurmtrain.data.summary import Format
from slurmtrain.data.texts import LINES, SUFFIXES, Advance, Text, blocks, find_texts, lines, text_of, whole
from slurmtrain.data.writing import About, Piece, store
from slurmtrain.errors import UserError

_BATCH_CHARACTERS = 4 << 20
_BATCH_TEXTS = 4096


@dataclass(frozen=True)
class BuildResult:
    """What was built; `unchanged`: the folder was there already with the same content."""

    folder: Path
    tokens: int
    documents: int
    unchanged: bool = False


def build(
    paths: Sequence[Path],
    out: Path,
    *,
    encoder: Encoder | None = None,
    key: str | None = None,
    answers: bool = False,
    kind: Format = "folder",
    force: bool = False,
    disk: Disk | None = None,
    advance: Advance = lambda _: None,
) -> BuildResult:
    """Build `out` from texts. `encoder`: default bytes; `key`: JSON lines with a text under it; `answers`: JSON lines with answers.

    Raises UserError: a path that is not there, nothing to read, a line that cannot be read, `out` taken by other tokens (`force`
    replaces them) or by something else (never replaced). Raises DataError when the disk refuses.
    """
    encoder = encoder or Bytes()
    suffixes = LINES if key or answers else SUFFIXES
    sources = list(find_texts(paths, suffixes))
    said = ", ".join(map(str, paths))
    if not sources:
        raise UserError(f"no text in {said}: name files, or folders with files of {' '.join(suffixes)}")
    if key or answers:
        read = answers_of(encoder.render) if answers else text_of(key or "text")
        pieces = _encoded((text for path in sources for text in lines(path, read, advance)), encoder)
    elif isinstance(encoder, Bytes):
        pieces = _bytes(sources, advance)
    else:
        pieces = _encoded((whole(path, advance) for path in sources), encoder)
    about = About(encoder.vocab, encoder.eod, answers, encoder.tokenizer)
    done = store(_some(pieces, said), out, kind, about, force=force, disk=disk)
    return BuildResult(out, done.tokens, done.documents, done.unchanged)


def _some(pieces: Iterable[Piece], said: str) -> Iterator[Piece]:
    """The same pieces. Raises UserError when there are none."""
    none = True
    for piece in pieces:
        none = False
        yield piece
    if none:
        raise UserError(f"no text in {said}: all texts are empty")


def _bytes(sources: Iterable[Path], advance: Advance) -> Iterator[Piece]:
    """Files as they are, whatever their encoding and size."""
    for path in sources:
        empty = True
        for block in blocks(path, advance):
            yield Piece(np.frombuffer(block, np.uint8), None, end=False)
            empty = False
        if not empty:
            yield Piece(np.array([BYTE_EOD]), None, end=True)


def _encoded(texts: Iterable[Text], encoder: Encoder) -> Iterator[Piece]:
    for batch in _batches(text for text in texts if text.text):
        for one in encoder.encode(batch):
            yield Piece(one.tokens, one.marks, end=True)


def _batches(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """Several texts at once, for tokenizers that share them between threads."""
    batch: list[Text] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text.text)
        if size >= _BATCH_CHARACTERS or len(batch) >= _BATCH_TEXTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
