"""Which file the boxes of a rank go to, and where in it: agreed by all ranks once, and used for every save until the boxes change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import numpy as np

from slurmtrain.checkpoint.group import Failure, Group, captured
from slurmtrain.checkpoint.image import Image, View, spots
from slurmtrain.checkpoint.layout import BoxSpec, FileLayout
from slurmtrain.checkpoint.reports import file_name
from slurmtrain.checkpoint.saver import Kinds, Register, Source
from slurmtrain.checkpoint.skeleton import lay_out
from slurmtrain.errors import CheckpointError
from slurmtrain.store.space import Need
from slurmtrain.units import format_size


@dataclass
class Arrangement:
    """`layout` and `kinds`: of the file that this rank writes, None and empty where another writes for it.

    Where files are written from an image: the `image` and all `boxes` in it, on the rank that writes, and `places` of this rank's own.
    On rank 0: `writers`, the lowest ranks of all writers, `need`, what they write together, and `notes` of all ranks.
    """

    specs: Sequence[BoxSpec]
    layout: FileLayout | None = None
    kinds: Kinds = field(default_factory=dict)
    image: Image | None = None
    view: View | None = None
    boxes: list[np.ndarray] = field(default_factory=list)
    places: list[np.ndarray] = field(default_factory=list)
    writers: tuple[int, ...] = ()
    need: Need = field(default_factory=lambda: Need(0))
    notes: tuple[str, ...] = ()

    def close(self) -> None:
        """Give the memory back."""
        self.places = self.boxes = []
        for one in (self.image, self.view):
            if one is not None:
                one.close()
        self.image = self.view = None


@dataclass(frozen=True)
class _Told:
    """What the rank that writes tells those it writes for: where the image is, its size, and where in it each rank's boxes begin."""

    path: Path | None
    size: int = 0
    starts: Sequence[Sequence[int]] = ()


def arrange(source: Source, group: Group, mates: Group, *, image: bool, register: Register | None = None) -> Arrangement:
    """Collective. `mates`: the ranks that share a file, the first of which writes it; `image`: write from an image in memory.

    Raises CheckpointError on all ranks alike, naming the rank.
    """
    made = Arrangement(source.specs)
    asked = mates.gather(captured(lambda: (dict(source.kinds), tuple(source.specs))))
    told = mates.broadcast(captured(lambda: _lead(made, asked or [], group.rank, image=image)) if mates.rank == 0 else None)
    notes: list[str] = []
    failed = told if isinstance(told, Failure) else captured(lambda: notes.extend(_place(made, told, mates.rank, register)))
    mine = failed if isinstance(failed, Failure) else (group.rank, None if made.layout is None else made.layout.size, notes)
    everybody = group.gather(mine)
    verdict = group.broadcast(_verdict(made, everybody) if everybody is not None else None)
    if isinstance(verdict, Failure):
        made.close()
        raise verdict.error()
    return made


def _lead(made: Arrangement, asked: Sequence[tuple[Kinds, Sequence[BoxSpec]] | Failure], rank: int, *, image: bool) -> _Told:
    """On the rank that writes: lay the file of all its ranks out, make the image."""
    kinds: dict[str, tuple[tuple[int, ...], str]] = {}
    specs: list[BoxSpec] = []
    counts = []
    for number, one in enumerate(asked):
        if isinstance(one, Failure):
            raise one.error()
        for name, kind in one[0].items():
            if kinds.setdefault(name, kind) != kind:
                raise CheckpointError(f"{name}: {kind} on rank {rank + number}, {kinds[name]} on a lower rank")
        specs += one[1]
        counts.append(len(one[1]))
    made.layout, made.kinds = lay_out(file_name(rank), specs), kinds
    if not image:
        return _Told(None)
    starts, size = spots(specs)
    try:
        made.image = Image(size)
    except OSError as error:
        raise CheckpointError(f"no {format_size(size)} of memory for a copy of the state: {error.strerror}") from error
    made.boxes = made.image.arrays(specs, starts)
    ends = list(accumulate(counts))
    return _Told(made.image.path, size, [starts[end - count : end] for end, count in zip(ends, counts, strict=True)])


def _place(made: Arrangement, told: _Told, number: int, register: Register | None) -> list[str]:
    """Find this rank's places in the image; notes."""
    if told.path is None:
        return []
    held: View
    if made.image is not None:
        held = made.image
    else:
        try:
            held = made.view = View.of(told.path, told.size)
        except OSError as error:
            where = f"{error.strerror}: {told.path}"
            raise CheckpointError(
                f"the image of the rank that writes cannot be opened ({where}): leave checkpoint.writers_per_node out"
            ) from error
    made.places = held.arrays(made.specs, told.starts[number])
    return _registered(held.register, register)


def _registered(tell: Callable[[Register], None], register: Register | None) -> list[str]:
    """Slower copies are no reason not to save."""
    if register is None:
        return []
    try:
        tell(register)
    except Exception as error:  # noqa: BLE001 whatever a driver says
        return [f"memory of saves is not pinned, copies are slow: {type(error).__name__}: {error}"]
    return []


def _verdict(made: Arrangement, everybody: Sequence[tuple[int, int | None, list[str]] | Failure]) -> Failure | None:
    """On rank 0: who writes how much, or the first failure."""
    for rank, one in enumerate(everybody):
        if isinstance(one, Failure):
            return Failure(f"rank {rank}: {one.message}", one.kind)
    sound = [one for one in everybody if not isinstance(one, Failure)]
    sizes = {rank: size for rank, size, _ in sound if size is not None}
    made.writers, made.need = tuple(sizes), Need(sum(sizes.values()), len(sizes) + 1)
    made.notes = tuple(note for _, _, notes in sound for note in notes[:1])[:1]
    return None
