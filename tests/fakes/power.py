"""What a power failure may leave of a folder, worked out from a log of the calls that changed it (tests.fakes.syscalls keeps one)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TypeVar

T = TypeVar("T")
BLOCK = 512


@dataclass(frozen=True)
class Call:
    """A call that was made: its number from 1, paths below the root, and for open files the number of the call that made them."""

    number: int
    name: str
    path: str
    target: str = ""
    file: int = 0
    offset: int = 0
    data: bytes = b""


@dataclass
class Log:
    """What lay below the root before (None: a folder), and the calls since."""

    before: dict[str, bytes | None]
    calls: list[Call] = field(default_factory=list)

    def until(self, number: int) -> Log:
        """The log as it was when call `number` had been made."""
        return Log(self.before, [call for call in self.calls if call.number <= number])


def tree(root: Path) -> dict[str, bytes | None]:
    """Path below the root: bytes of a file, None for a folder."""
    paths = sorted(root.rglob("*")) if root.is_dir() else []
    return {path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes() for path in paths}


@dataclass
class _File:
    """An inode: bytes that are durable, and writes since."""

    durable: bytearray = field(default_factory=bytearray)
    writes: list[tuple[int, bytes]] = field(default_factory=list)

    def content(self, writes: Sequence[tuple[int, bytes]]) -> bytearray:
        data = bytearray(self.durable)
        for offset, piece in writes:
            data.extend(bytes(max(0, offset + len(piece) - len(data))))
            data[offset : offset + len(piece)] = piece
        return data


@dataclass
class _Change:
    """One change of a folder: a name that goes, a name that comes."""

    gone: str = ""
    come: str = ""
    node: _File | _Folder | None = None


@dataclass
class _Folder:
    """An inode: names that are durable, and changes since."""

    durable: dict[str, _File | _Folder] = field(default_factory=dict)
    changes: list[_Change] = field(default_factory=list)

    def names(self, changes: Sequence[_Change]) -> dict[str, _File | _Folder]:
        names = dict(self.durable)
        for change in changes:
            names.pop(change.gone, None)
            if change.node is not None:
                names[change.come] = change.node
        return names


class _Replay:
    """The root after the calls of a log, with what is durable and what is not."""

    def __init__(self, log: Log) -> None:
        self.root = _Folder()
        self._files: dict[int, _File] = {}
        for path, data in log.before.items():
            self._folder(_parent(path)).durable[_name(path)] = _Folder() if data is None else _File(bytearray(data))
        for call in log.calls:
            getattr(self, f"_{call.name}")(call)

    def _at(self, path: str) -> _File | _Folder:
        node: _File | _Folder = self.root
        for part in PurePath(path).parts:
            assert isinstance(node, _Folder), path
            node = node.names(node.changes)[part]
        return node

    def _folder(self, path: str) -> _Folder:
        node = self._at(path)
        assert isinstance(node, _Folder), path
        return node

    def _change(self, path: str, change: _Change) -> None:
        self._folder(_parent(path)).changes.append(change)

    def _mkdir(self, call: Call) -> None:
        self._change(call.path, _Change("", _name(call.path), _Folder()))

    def _create(self, call: Call) -> None:
        self._files[call.file] = _File()
        self._change(call.path, _Change("", _name(call.path), self._files[call.file]))

    def _unlink(self, call: Call) -> None:
        self._change(call.path, _Change(_name(call.path)))

    _rmdir = _unlink

    def _link(self, call: Call) -> None:
        self._change(call.target, _Change("", _name(call.target), self._at(call.path)))

    def _rename(self, call: Call) -> None:
        assert _parent(call.path) == _parent(call.target), "a rename between folders is two changes: not modelled"
        self._change(call.path, _Change(_name(call.path), _name(call.target), self._at(call.path)))

    def _pwrite(self, call: Call) -> None:
        self._files[call.file].writes.append((call.offset, call.data))

    def _fsync(self, call: Call) -> None:
        file = self._files[call.file]
        file.durable, file.writes = file.content(file.writes), []

    def _fsync_dir(self, call: Call) -> None:
        folder = self._folder(call.path)
        folder.durable, folder.changes = folder.names(folder.changes), []

    def _settle(self, call: Call) -> None:
        return

    _close = _settle


def _parent(path: str) -> str:
    return PurePath(path).parent.as_posix()


def _name(path: str) -> str:
    return PurePath(path).name


def after_power_failure(log: Log, root: Path, target: Path, rng: random.Random) -> None:
    """Make the new folder `target`: something that a power failure may leave of `root` when the calls of the log have been made."""
    assert root.is_absolute(), root
    _materialised(_Replay(log).root, target, rng)


def assert_nothing_bypassed(log: Log, root: Path) -> None:
    """The tree below the root is what the log says: no change was made but through the fake."""
    said: dict[str, bytes | None] = {}

    def add(folder: _Folder, at: str) -> None:
        for name, node in folder.names(folder.changes).items():
            said[f"{at}{name}"] = bytes(node.content(node.writes)) if isinstance(node, _File) else None
            if isinstance(node, _Folder):
                add(node, f"{at}{name}/")

    add(_Replay(log).root, "")
    there = tree(root)
    differ = sorted(path for path in said.keys() | there.keys() if said.get(path, 0) != there.get(path, 0))
    assert not differ, f"changed behind the fake's back: {differ[:5]}"


def _materialised(folder: _Folder, path: Path, rng: random.Random) -> None:
    path.mkdir()
    for name, node in folder.names(_some(folder.changes, rng)).items():
        if isinstance(node, _Folder):
            _materialised(node, path / name, rng)
        else:
            (path / name).write_bytes(_survived(node, rng))


def _survived(file: _File, rng: random.Random) -> bytes:
    writes = []
    for offset, data in _some(file.writes, rng):
        kept = data
        if len(data) > 1 and rng.random() < 0.3:  # torn: some blocks, up to some byte
            start = rng.randrange(len(data)) // BLOCK * BLOCK
            kept, offset = data[start : rng.randrange(start, len(data)) + 1], offset + start  # noqa: PLW2901
        writes.append((offset, kept))
    data = file.content(writes)
    longest = len(file.content(file.writes))
    if rng.random() < 0.3:  # the size is there before the bytes
        data.extend(bytes(longest - len(data)))
    return bytes(data)


def _some(items: Sequence[T], rng: random.Random) -> list[T]:
    """None, all, the first few, or any of them, in their order."""
    how = rng.randrange(4)
    if how == 0:
        return []
    if how == 1:
        return list(items)
    if how == 2:
        return list(items[: rng.randint(0, len(items))])
    return [item for item in items if rng.random() < 0.5]
