"""What a rank asks of its writer, and what the writer answers. Pickled between the two; never stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slurmtrain.checkpoint.layout import FileLayout
from slurmtrain.checkpoint.reports import Report
from slurmtrain.checkpoint.saver import Header, Kinds, Terms
from slurmtrain.store.space import Need

Kind = Literal["local", "saved", "written", "failed", "given up", "disowned", "done"]


@dataclass(frozen=True)
class Setting:
    """What holds until further notice. `layout`: of the file; the image, whose descriptor comes with this, holds its boxes.

    `writers`: the lowest ranks of all writers, and `need` what they write together, where this writer commits (rank 0's); else None.
    `orphan_s`: how long a writer whose rank is gone waits for others.
    """

    terms: Terms
    rank: int
    layout: FileLayout
    kinds: Kinds
    writers: tuple[int, ...] | None
    need: Need
    orphan_s: float


@dataclass(frozen=True)
class Order:
    """Write what the image holds now. `seq`: counts the saves of this attempt, from 1.

    `local`: a staging folder on the node's own disk that the file goes to first, and is answered for by an Ended of its own; `shared`:
    whether it goes to the run folder.
    """

    seq: int
    header: Header
    local: Path | None = None
    shared: bool = True


@dataclass(frozen=True)
class Obituary:
    """Tell whoever commits that this rank's writer has failed in a save: it cannot say so itself."""

    seq: int
    header: Header
    error: str


@dataclass(frozen=True)
class Inquest:
    """The writer that commits was lost in a save: find out whether it had published; else clear away what it left."""

    seq: int
    header: Header
    error: str


@dataclass(frozen=True)
class Sweep:
    """Remove what failed saves of these steps left behind."""

    seq: int
    attempt: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Fail:
    """Give that save up, if it is under way."""

    seq: int
    why: str


@dataclass(frozen=True)
class Ended:
    """An order was carried out. `saved`: by the writer that commits; `written`: another one's part of it is done.

    `given up`: through no fault of this writer. `disowned`: another attempt owns the run. `local`: the part of an order that goes to the
    node's own disk is done (`report`), or has failed (`error`); what the order asks besides is answered for later.
    """

    seq: int
    kind: Kind
    seconds: float
    bytes: int = 0
    notes: tuple[str, ...] = ()
    error: str = ""
    report: Report | None = None
