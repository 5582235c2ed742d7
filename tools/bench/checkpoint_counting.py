"""Operations of the file system, counted where some ranks really save a small state and load it.

What changes something goes through `syscalls`; what only looks (files opened, folders listed, names looked up) is seen by Python's
audit of opens and by a wrapper of os.stat. Each process adds a line to one file for each operation.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slurmtrain.checkpoint.layout import BoxSpec
from slurmtrain.checkpoint.load import PartReader, Wish
from slurmtrain.checkpoint.restore import restore
from slurmtrain.checkpoint.saver import ArraySource, Header, Piece, Terms, shares
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import Found
from slurmtrain.store.retention import RetentionPolicy
from slurmtrain.syscalls import SystemCalls

CHANGES = ("mkdir", "create", "rename", "link", "unlink", "rmdir", "fsync", "fsync folder")
LOOKS = ("open", "list", "stat")
"""Of single files, whole folders, and names."""


class _Log:
    """Where this process writes its lines to; None: nowhere. `changes`: told by the audit, too, for what has no door."""

    def __init__(self) -> None:
        self.fd: int | None = None
        self.folder = ""
        self.changes = False
        self.watching = False

    def begin(self, word: str, *, changes: bool) -> None:
        log, self.folder = word.split("|")
        self.changes = changes
        self.fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        if not self.watching:
            self.watching = True
            sys.addaudithook(self._hear)
            for name in ("stat", "lstat"):
                setattr(os, name, self._told(getattr(os, name)))

    def end(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def note(self, kind: str) -> None:
        if self.fd is not None:
            os.write(self.fd, f"{kind}\n".encode())

    def _inside(self, path: Any) -> bool:
        return self.fd is not None and isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(self.folder)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not args or not self._inside(args[0]):
            return
        if event == "open":
            flags = args[2]
            if flags & os.O_CREAT and self.changes:
                self.note("create")
            elif not flags & (os.O_CREAT | os.O_DIRECTORY):
                self.note("open")
        elif event in {"os.listdir", "os.scandir"}:
            self.note("list")
        elif event in _AUDITED and self.changes:
            self.note(_AUDITED[event])

    def _told(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapper(path: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside(path):
                self.note("stat")
            return call(path, *args, **kwargs)

        return wrapper


_AUDITED = {"os.mkdir": "mkdir", "os.remove": "unlink", "os.rename": "rename", "os.rmdir": "rmdir", "os.link": "link"}
_LOG = _Log()


def counting(word: str) -> CountingCalls:
    """Count what this process does in a folder from now on; `word`: LOG|FOLDER."""
    _LOG.begin(word, changes=False)
    return CountingCalls(_LOG.note)


class CountingCalls(SystemCalls):
    """The operating system's, each told by its name."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def mkdir(self, path: Path) -> None:
        self._note("mkdir")
        super().mkdir(path)

    def rmdir(self, path: Path) -> None:
        self._note("rmdir")
        super().rmdir(path)

    def unlink(self, path: Path) -> None:
        self._note("unlink")
        super().unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        self._note("rename")
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._note("link")
        super().link(source, target)

    def create(self, path: Path) -> int:
        self._note("create")
        return super().create(path)

    def fsync(self, fd: int) -> None:
        self._note("fsync")
        super().fsync(fd)

    def fsync_dir(self, path: Path) -> None:
        self._note("fsync folder")
        super().fsync_dir(path)


@dataclass(frozen=True)
class Job:
    """What a rank saves, and which ranks share a writer."""

    folder: Path
    log: Path
    specs: Sequence[Sequence[BoxSpec]]
    """By rank."""
    per_node: int
    writers_per_node: int

    @property
    def word(self) -> str:
        return f"{self.log}|{self.folder}"

    def mates(self, rank: int) -> list[int]:
        nodes = len(self.specs) // self.per_node
        return next(ranks for ranks in shares(self.per_node, self.writers_per_node, nodes) if rank in ranks)


def save(member: Any, job: Job, *, asynchronous: bool) -> None:
    """One save from its begin until it is durable; layouts are made before, as in a run, and counted too."""
    from slurmtrain.checkpoint.staged import AsyncSaver
    from slurmtrain.checkpoint.sync import SyncSaver
    from slurmtrain.train.group import TorchGroup

    terms, ranks = Terms(RunDir(job.folder), RetentionPolicy(2)), job.mates(member.rank)
    mates = TorchGroup(60.0, ranks) if len(ranks) > 1 else None
    pieces = [Piece(one.name, one.global_shape, one.box, one.dtype, _values(one)) for one in job.specs[member.rank]]
    if asynchronous:
        saver: Any = AsyncSaver(terms, member.group, mates, door=f"checkpoint_counting:counting:{job.word}")
    else:
        saver = SyncSaver(terms, member.group, mates, calls=counting(job.word))
    outcome = saver.begin(Header(1, 1, 0, time.time(), {}, {}), ArraySource(pieces))
    outcomes = [outcome] if outcome is not None else saver.wait()
    saver.close()
    _LOG.end()
    if not outcomes or not outcomes[0].ok:
        raise RuntimeError(f"not saved: {outcomes}")


def load(member: Any, job: Job) -> None:
    """What every rank saved, back."""
    _LOG.begin(job.word, changes=True)
    targets = [Wish(_part(one), one.dtype, np.empty(one.box.shape, one.dtype)) for one in job.specs[member.rank]]

    def fill(found: Found) -> None:
        with PartReader(found.folder, found.manifest, turn=(member.rank, member.ranks)) as reader:
            reader.fill_all(targets)

    if restore(RunDir(job.folder).checkpoints, member.group, fill) is None:
        raise RuntimeError("no checkpoint")
    _LOG.end()
    for one, wish in zip(job.specs[member.rank], targets, strict=True):
        if not np.array_equal(wish.target, _values(one)):
            raise AssertionError(f"{one.name}: other values than were saved")


def _values(spec: BoxSpec) -> np.ndarray:
    """Of a box: its name and offset alone decide."""
    first = sum(spec.name.encode()) + sum(spec.box.offset)
    return (np.arange(spec.box.volume) + first).reshape(spec.box.shape).astype(spec.dtype)


def _part(spec: BoxSpec) -> Any:
    from slurmtrain.boxes import Part

    return Part(spec.name, spec.global_shape, spec.box, tuple((0, n) for n in spec.box.shape))


@dataclass(frozen=True)
class Counted:
    """Operations of one save of each kind and of one load, and the files that were written (name: bytes)."""

    ranks: int
    writers: int
    saved: Counter[str]
    saved_aside: Counter[str]
    """By the processes that write while training goes on."""
    loaded: Counter[str]
    files: dict[str, int]


def counted(folder: Path, specs: Sequence[Sequence[BoxSpec]], per_node: int, writers_per_node: int) -> Counted:
    """Save and load with as many processes as there are ranks."""
    from checkpoint_world import World

    found: dict[str, Counter[str]] = {}
    files: dict[str, int] = {}
    with World(len(specs), folder) as world:
        for name in ("aside", "saved", "loaded"):
            job = Job(folder / "run", folder / f"log-{name}", specs, per_node, writers_per_node)
            if name == "loaded":
                world.run(load, job)
            else:
                shutil.rmtree(job.folder, ignore_errors=True)
                job.folder.mkdir()
                world.run(functools.partial(save, asynchronous=name == "aside"), job)
            found[name] = Counter(job.log.read_text().split("\n")[:-1])
            files = {path.name: path.stat().st_size for path in RunDir(job.folder).checkpoint(1).iterdir()}
    shutil.rmtree(folder / "run")
    writers = len(shares(per_node, writers_per_node, len(specs) // per_node))
    return Counted(len(specs), writers, found["saved"], found["aside"], found["loaded"], files)


@dataclass(frozen=True)
class Formula:
    """How often a kind of operation comes: `once` + writers * `each_writer` + ranks * `each_rank`."""

    once: float
    each_writer: float
    each_rank: float

    def at(self, writers: int, ranks: int) -> float:
        return self.once + writers * self.each_writer + ranks * self.each_rank


def formulas(counts: Sequence[tuple[int, int, Counter[str]]]) -> dict[str, Formula]:
    """From three or more counts (writers, ranks, operations), by least squares: exact where the counts are."""
    kinds = [kind for kind in (*CHANGES, *LOOKS) if any(counter[kind] for _, _, counter in counts)]
    places = np.array([(1.0, writers, ranks) for writers, ranks, _ in counts])
    assert np.linalg.matrix_rank(places) == 3, "sizes from which writers and ranks cannot be told apart"
    solved = np.linalg.lstsq(places, np.array([[counter[kind] for kind in kinds] for _, _, counter in counts], float), rcond=None)[0]
    return {kind: Formula(*(round(float(value), 3) + 0.0 for value in solved[:, i])) for i, kind in enumerate(kinds)}
