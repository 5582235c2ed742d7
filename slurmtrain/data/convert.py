"""Tokens of one format written in another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurmtrain.atomic import Disk
from slurmtrain.data.index import TOKENIZER_NAME
from slurmtrain.data.source import Source, open_source
from slurmtrain.data.summary import Format
from slurmtrain.data.texts import Advance
from slurmtrain.data.writing import About, Piece, Stored, store
from slurmtrain.errors import DataError, UserError

_PIECE = 4 << 20
_MOST = 2**31


def convert(
    path: Path,
    out: Path,
    kind: Format,
    *,
    vocab: int | None = None,
    eod: int | None = None,
    force: bool = False,
    disk: Disk | None = None,
    advance: Advance = lambda _: None,
) -> Stored:
    """Write the tokens at `path` as `out`. `vocab`, `eod`: where the source does not tell them; `advance` is told of tokens.

    Raises UserError: a folder needs both, and nobody says them; a token is not below `vocab`; `out` is taken. Raises DataError for a
    damaged source.
    """
    source = open_source(path)
    told = source.summary
    vocab, eod = (mine if mine is not None else theirs for mine, theirs in ((vocab, told.vocab), (eod, told.eod)))
    if told.vocab is not None and vocab is not None and vocab < told.vocab:
        raise UserError(f"--vocab {vocab}: {path} has a vocabulary of {told.vocab}: use {told.vocab} or more")
    if kind == "folder" and (vocab is None or eod is None):
        raise UserError(f"{path}: does not tell its vocabulary and end of documents: give --vocab N and --eod NUMBER")
    if kind == "folder" and eod is not None and vocab is not None and not 0 <= eod < vocab:
        raise UserError(f"--eod {eod}: is not below the vocabulary of {vocab}")
    kept = path / TOKENIZER_NAME
    about = About(vocab, eod, told.answers, kept.read_bytes() if told.format == "folder" and kept.exists() else None)
    bound = vocab if told.vocab is None else None
    return store((_within(piece, bound, path) for piece in _pieces(source, advance)), out, kind, about, force=force, disk=disk)


def _within(piece: Piece, vocab: int | None, path: Path) -> Piece:
    """The same piece. Raises UserError for a token that is not below the vocabulary that was said, or that no format holds."""
    top = int(piece.tokens.max()) if len(piece.tokens) else 0
    if vocab is not None and top >= vocab:
        raise UserError(f"--vocab {vocab}: {path} has a token {top}: use {top + 1} or more")
    if top >= _MOST:
        raise UserError(f"{path}: has a token {top}: no vocabulary is as large")
    return piece


def _pieces(source: Source, advance: Advance) -> Iterator[Piece]:
    told = source.summary
    ends = (source.bounds(0)[0], source.bounds(told.documents - 1)[1]) if told.documents else (0, 0)
    if ends != (0, told.tokens):
        raise DataError(f"{told.path}: its documents run from token {ends[0]} to {ends[1]} of {told.tokens}: some tokens are in none")
    for number in range(told.documents):
        start, stop = source.bounds(number)
        for at in range(start, max(stop, start + 1), _PIECE):
            count = min(_PIECE, stop - at)
            marks = source.answers(at, count) if told.answers else None
            yield Piece(source.read(at, count), marks, end=at + count == stop)
            advance(count)
