"""Arrays and layouts for tests of save and load, without torch."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from slurmtrain.boxes import Box, Part, whole
from slurmtrain.checkpoint.load import PartReader
from slurmtrain.checkpoint.saver import ArraySource, Header, Outcome, Piece, Saver, Terms
from slurmtrain.checkpoint.sync import SyncSaver
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import Found
from slurmtrain.store.retention import RetentionPolicy
from slurmtrain.syscalls import SYSTEM, Syscalls

SHAPES: dict[str, tuple[int, ...]] = {"model/w": (1100, 500), "model/norm": (600,), "optimizer/norm/exp_avg": (600,), "model/scale": ()}


def values(name: str, step: int) -> np.ndarray:
    """What the tensor is at a step: bit patterns of floats below 2, cheap to make."""
    shape = SHAPES[name]
    numbers = np.arange(prod(shape), dtype=np.uint32) * np.uint32(2654435761) + np.uint32(step * 97 + len(name))
    return (numbers & np.uint32(0x3FFFFFFF)).view(np.float32).reshape(shape)


def rows(shape: tuple[int, ...], index: int, count: int) -> Box | None:
    """The index-th of `count` runs of rows as FSDP cuts them (later ranks may have none); a scalar belongs to the first."""
    if not shape:
        return whole(shape) if index == 0 else None
    share = -(-shape[0] // count)
    start, stop = min(index * share, shape[0]), min((index + 1) * share, shape[0])
    return Box((start, *(0 for _ in shape[1:])), (stop - start, *shape[1:]))


def cut(array: np.ndarray, box: Box) -> np.ndarray:
    return np.asarray(array[tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))])


def pieces(step: int, index: int, count: int) -> list[Piece]:
    """The pieces of one of `count` ranks."""
    owned = [(name, shape, rows(shape, index, count)) for name, shape in SHAPES.items()]
    return [Piece(name, shape, box, "float32", cut(values(name, step), box)) for name, shape, box in owned if box is not None]


def source(step: int, index: int, count: int) -> ArraySource:
    return ArraySource(pieces(step, index, count))


def header(step: int, world: int, attempt: int = 1) -> Header:
    return Header(step, attempt, step * 8, step * 10.0, {"world": world}, {"position": step * 4})


def terms(run: RunDir, keep: int = 2, **more: Any) -> Terms:
    return Terms(run, RetentionPolicy(keep), **more)


def begin(saver: Saver, step: int, group: Any, attempt: int = 1) -> Outcome | None:
    """Begin to save what the tensors are at a step."""
    return saver.begin(header(step, group.size, attempt), source(step, group.rank, group.size))


def save_step(
    run: RunDir,
    step: int,
    group: Any,
    *,
    attempt: int = 1,
    keep: int = 2,
    calls: Syscalls = SYSTEM,
    owner_check: Callable[[], None] | None = None,
) -> Outcome:
    """A synchronous save."""
    saver = SyncSaver(terms(run, keep), group, calls=calls, owner_check=owner_check)
    outcome = begin(saver, step, group, attempt)
    saver.close()
    assert outcome is not None
    return outcome


def wrong_tensors(found: Found) -> list[str]:
    """Names whose content is not that of the checkpoint's step."""
    wrong = []
    with PartReader(found.folder, found.manifest) as reader:
        for name, shape in SHAPES.items():
            target = np.full(shape, np.nan, np.float32)
            reader.fill(Part(name, shape, whole(shape), tuple((0, n) for n in shape)), "float32", target)
            if target.tobytes() != values(name, found.step).tobytes():
                wrong.append(name)
    return wrong
