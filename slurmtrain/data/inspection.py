"""What tokens are, and one of their documents in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from slurmtrain.data.encode import BYTE_EOD, BYTE_VOCAB, Bytes, Encoder, HubTokenizer
from slurmtrain.data.index import TOKENIZER_NAME
from slurmtrain.data.source import Source, open_source
from slurmtrain.data.summary import Summary
from slurmtrain.data.tokens import TokenFolder
from slurmtrain.errors import DataError, UserError

_SAMPLED = 10_000
_COUNTED = 16 << 20


@dataclass(frozen=True)
class Look:
    """`lengths`: least, median and greatest of the documents' tokens (of at most 10,000 of them, evenly taken); `answered`: share of the
    tokens, of at most 16 M at the beginning, that belong to answers; `text`: of the document, None without a tokenizer; `marked`: its
    parts with whether they are answers; `faults`: files that are not as they were written, None where that was not asked.
    """

    told: Summary
    lengths: tuple[int, int, int]
    answered: float | None
    document: tuple[int, ...]
    parts: tuple[tuple[str, bool], ...] | None
    faults: list[str] | None


def look(path: Path, *, number: int = 0, most: int = 200, encoder: Encoder | None = None, verify: bool = False) -> Look:
    """Look at tokens, and at the first `most` tokens of one document. Raises DataError, UserError."""
    source = open_source(path)
    told = source.summary
    if not told.documents:
        raise DataError(f"{path}: has no documents")
    if not 0 <= number < told.documents:
        raise UserError(f"{path}: has no document {number}: there are 0 to {told.documents - 1}")
    start, stop = source.bounds(number)
    tokens = source.read(start, min(most, stop - start))
    encoder = encoder or known_encoder(told)
    return Look(
        told,
        _lengths(source),
        float(source.answers(0, min(_COUNTED, told.tokens)).mean()) if told.answers and told.tokens else None,
        tuple(tokens.tolist()),
        tuple(_parts(source, start, tokens, encoder)) if encoder else None,
        _faults(source) if verify else None,
    )


def known_encoder(told: Summary) -> Encoder | None:
    """What turns the tokens back into text, where the tokens say it themselves."""
    if told.format == "folder" and (told.path / TOKENIZER_NAME).exists():
        return HubTokenizer.load(told.path / TOKENIZER_NAME, eod=told.eod)
    return Bytes() if (told.vocab, told.eod) == (BYTE_VOCAB, BYTE_EOD) else None


def _lengths(source: Source) -> tuple[int, int, int]:
    count = source.summary.documents
    lengths = [stop - start for start, stop in (source.bounds(n) for n in range(0, count, -(-count // _SAMPLED)))]
    return min(lengths), int(np.median(lengths)), max(lengths)


def _parts(source: Source, start: int, tokens: np.ndarray, encoder: Encoder) -> Iterator[tuple[str, bool]]:
    """The text in runs of equal marks."""
    marks = source.answers(start, len(tokens)) if source.summary.answers else np.zeros(len(tokens), np.bool_)
    cuts = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist(), len(tokens)]
    for begin, end in pairwise(cuts):
        if end > begin:
            yield encoder.decode(tokens[begin:end].tolist()), bool(marks[begin])


def _faults(source: Source) -> list[str]:
    if not isinstance(source, TokenFolder):
        raise UserError(f"{source.summary.path}: this format keeps no sums: only a folder of tokens can be verified")
    return source.verify()
