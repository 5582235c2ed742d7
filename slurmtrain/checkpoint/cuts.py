"""How tensors are cut into boxes and boxes dealt out to files where one process writes a whole checkpoint; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slurmtrain.boxes import Box

MOST_BOX_BYTES = 256 << 20
"""A box is in memory as a whole while it is written."""


@dataclass(frozen=True)
class Sizing:
    """How many files, or how large one may be in bytes, of its tensors alone; one of the two is None."""

    files: int | None = None
    most_bytes: int | None = None

    def __post_init__(self) -> None:
        assert (self.files is None) != (self.most_bytes is None), self
        assert (self.files or self.most_bytes or 0) >= 1, self

    def most_box(self, total: int) -> int:
        """Bytes of the largest box where all tensors together have `total`."""
        share = -(-total // self.files) if self.files is not None else self.most_bytes
        return max(1, min(MOST_BOX_BYTES, share or 1))

    def deal(self, sizes: Sequence[int]) -> list[list[int]]:
        """The numbers of the boxes of each file, in their order; no file is empty, unless there are no boxes (then one is)."""
        dealt = _even(sizes, self.files) if self.files is not None else _packed(sizes, self.most_bytes or 1)
        return dealt or [[]]


def runs_of_rows(box: Box, width: int, most_bytes: int) -> Iterator[Box]:
    """The box as runs of its rows of at most so many bytes, as few as can be, alike but for one row; a row is never cut.

    `width`: bytes of an element. A box without elements, or dims, is itself.

    >>> [one.offset for one in runs_of_rows(Box((4, 0), (5, 8)), 1, 16)]
    [(4, 0), (6, 0), (8, 0)]
    """
    rows = box.shape[0] if box.shape else 1
    size = box.volume * width
    if size <= most_bytes or rows == 1:
        yield box
        return
    count = min(rows, -(-rows // max(1, most_bytes // (size // rows))))
    ends = [-(-rows * i // count) for i in range(count + 1)]
    for low, high in pairwise(ends):
        yield Box((box.offset[0] + low, *box.offset[1:]), (high - low, *box.shape[1:]))


def _even(sizes: Sequence[int], files: int) -> list[list[int]]:
    """Each box goes where its middle falls when all of them in a row are cut into equal shares; fewer files where boxes are few.

    >>> _even([4, 4, 4, 4, 8], 3)
    [[0, 1], [2, 3], [4]]
    """
    total, done = sum(sizes), 0
    dealt: dict[int, list[int]] = {}
    for i, size in enumerate(sizes):
        middle = 2 * done + size
        dealt.setdefault(min(files - 1, middle * files // (2 * total)) if total else 0, []).append(i)
        done += size
    return list(dealt.values())


def _packed(sizes: Sequence[int], most_bytes: int) -> list[list[int]]:
    """Each box goes into the last file, or a new one where it does not fit; one that fits nowhere is alone.

    >>> _packed([4, 4, 9, 1], 8)
    [[0, 1], [2], [3]]
    """
    dealt: list[list[int]] = []
    room = 0
    for i, size in enumerate(sizes):
        if not dealt or size > room:
            dealt.append([])
            room = most_bytes
        dealt[-1].append(i)
        room -= size
    return dealt
