"""A checkpoint out of a folder of PyTorch's Distributed Checkpoint, whatever number of processes wrote it.

Nothing is unpickled but what `dcp_metadata` and `torch.load(weights_only=True)` let through. With our header in it (`dcp_names`) it comes
back as it was. Without, torch alone has written it: nothing says how far the data was read, so the weights are taken, as of step 0.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

import numpy as np
import torch

from slurmtrain.checkpoint.cuts import Sizing, runs_of_rows
from slurmtrain.checkpoint.dcp import array_of
from slurmtrain.checkpoint.dcp_metadata import SavedBox, SavedTensor, read_metadata
from slurmtrain.checkpoint.dcp_names import HEADER, from_dcp, is_hyper, is_step, to_dcp
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.expected import GROUPS, Expected, misfits
from slurmtrain.checkpoint.layout import BoxSpec
from slurmtrain.checkpoint.making import Advance, Kinds, Made, bytes_of, make, plan
from slurmtrain.errors import CheckpointError, CorruptCheckpointError, one_line
from slurmtrain.store.manifest import Manifest
from slurmtrain.syscalls import SYSTEM, Syscalls
from slurmtrain.units import counted

MOST_HEADER_BYTES = 64 << 20


@dataclass(frozen=True)
class Theirs:
    """A folder that was looked at and fits: what will be taken, by our names; the fields of its manifest but for time; and notes.

    `resumes`: a run could go on from it, for it has more than weights.
    """

    folder: Path
    header: Manifest
    tensors: Mapping[str, SavedTensor]
    notes: tuple[str, ...]
    resumes: bool

    @property
    def kinds(self) -> Kinds:
        return {name: (one.shape, one.dtype) for name, one in self.tensors.items()}

    @property
    def bytes(self) -> int:
        return bytes_of(self.kinds)


def look(folder: Path, expected: Expected, ignore: Sequence[str] = ()) -> Theirs:
    """Compare what a folder holds with what is expected; keys that a pattern of `ignore` fits are left out.

    Raises UserError where there is no such folder, CheckpointError naming the first key that is missing, too many, of another shape or
    element type, or no tensor; CorruptCheckpointError for damage.
    """
    saved = read_metadata(folder)
    kept = {name: one for name, one in saved.tensors.items() if not _fits(name, ignore)}
    _check_files(folder, kept)
    pickled = [name for name in saved.others if not (is_hyper(name) or _fits(name, ignore))]
    header = _header(folder, kept.pop(HEADER)) if HEADER in kept else None
    counts = {name: kept.pop(name) for name in list(kept) if is_step(name)}
    notes = []
    resumes = header is not None
    if header is None:
        left = [name for name in kept if name.partition(".")[0] in ("optimizer", "ema", "rng")]
        if left or counts:
            notes.append(f"torch alone wrote it, so the weights are taken, as of step 0: {counted(len(left), 'tensor')} left out")
        kept = {name: one for name, one in kept.items() if name not in left}
        header = Manifest(0, 0, 0, {}, {}, {}, {"v": 1, "origin": str(folder)})
        groups: tuple[str, ...] = ("model",)
    else:
        groups = GROUPS
        _check_counts(folder, header, counts)
    if pickled:
        _refuse_pickled(folder, pickled)
    rng = {name: one for name, one in kept.items() if name.startswith("rng.") and from_dcp(name) and one.dtype == "uint8"}
    found = {name: (one.shape, one.dtype) for name, one in kept.items() if name not in rng}
    wanted = {to_dcp(name): kind for name, kind in expected.of(groups).items()}
    if fault := misfits(found, wanted, has=str(folder), wants=expected.where):
        raise CheckpointError(fault)
    return Theirs(folder, header, {from_dcp(name) or name: one for name, one in kept.items()}, tuple(notes), resumes)


def take(theirs: Theirs, out: Path, sizing: Sizing, *, t: float, calls: Syscalls = SYSTEM, advance: Advance = lambda _: None) -> Made:
    """Write what was looked at as the new folder `out`, a checkpoint; `t`: its time, where theirs has none.

    In memory are two of the parts that torch saved, and a box of at most `cuts.MOST_BOX_BYTES`. Raises UserError where `out` is taken or
    cannot be made, CorruptCheckpointError naming tensor and file where one is not what the metadata says, CheckpointError.
    """
    kinds = theirs.kinds
    contents = _Contents(theirs, sizing.most_box(bytes_of(kinds)))
    files = plan(kinds, sizing, lambda name: [one.box for one in theirs.tensors[name].boxes])
    header = theirs.header if theirs.header.t else _at(theirs.header, t)
    return Made(make(out, header, kinds, files, contents.arrays, calls=calls, advance=advance), theirs.notes)


def _at(header: Manifest, t: float) -> Manifest:
    return Manifest(header.step, header.attempt, header.tokens, header.layout, {}, {}, header.state, t=t)


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _refuse_pickled(folder: Path, names: Sequence[str]) -> None:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    raise CheckpointError(f"{folder}: {names[0]}{more} is no tensor of a checkpoint and is not read: --ignore PATTERN leaves it out")


def _header(folder: Path, saved: SavedTensor) -> Manifest:
    if saved.dtype != "uint8" or len(saved.shape) != 1 or not 0 < saved.shape[0] <= MOST_HEADER_BYTES:
        raise CorruptCheckpointError(f"{folder}: {HEADER}: {saved.dtype} of shape {saved.shape}, not a line of JSON as uint8")
    return Manifest.from_json(array_of(_whole(folder, HEADER, saved)).tobytes(), f"{folder}: {HEADER}")


def _check_counts(folder: Path, header: Manifest, counts: Mapping[str, SavedTensor]) -> None:
    """Torch counts the updates of each parameter; one that has gone on since is no longer of the header's step."""
    updates = header.state.get("optimizer_updates")
    for name, one in counts.items():
        if one.shape != () or one.dtype not in ("float32", "float64", "int64"):
            raise CheckpointError(f"{folder}: {name}: {one.dtype} of shape {one.shape}, not a count of updates")
        count = float(_whole(folder, name, one))
        if count != updates:
            fault = f"{folder}: {name} says {count:g} updates, {HEADER} says {updates}: torch has gone on from it"
            raise CheckpointError(f"{fault}; without the key {HEADER} (--ignore {HEADER}) its weights are taken")


def _whole(folder: Path, name: str, saved: SavedTensor) -> torch.Tensor:
    """A small tensor."""
    target = torch.empty(saved.shape, dtype=getattr(torch, saved.dtype))
    for one in saved.boxes:
        region = tuple(slice(low, high) for low, high in zip(one.box.offset, one.box.stop, strict=True))
        target[region].copy_(_item(folder, name, saved, one)) if region else target.copy_(_item(folder, name, saved, one))
    return target


def _check_files(folder: Path, tensors: Mapping[str, SavedTensor]) -> None:
    """Each file is there and long enough."""
    ends: dict[str, tuple[int, str]] = {}
    for name, tensor in tensors.items():
        for one in tensor.boxes:
            ends[one.file] = max(ends.get(one.file, (0, "")), (one.offset + one.length, name))
    for file, (end, name) in sorted(ends.items()):
        try:
            size = (folder / file).stat().st_size
        except OSError as error:
            raise CheckpointError(f"{folder / file}: {error.strerror or error}; {name} lies in it") from error
        if size < end:
            raise CorruptCheckpointError(f"{folder / file}: cut off: {size} bytes, and {name} ends at byte {end}")


class _Contents:
    """The boxes that are to be written, cut out of the parts that torch saved; each part is loaded once where boxes come in order."""

    def __init__(self, theirs: Theirs, most_bytes: int) -> None:
        self._theirs = theirs
        self._parts = {
            (name, piece.offset): one
            for name, tensor in theirs.tensors.items()
            for one in tensor.boxes
            for piece in runs_of_rows(one.box, carrier(tensor.dtype).itemsize, most_bytes)
        }
        self._loaded: tuple[SavedBox, np.ndarray] | None = None

    def arrays(self, specs: Sequence[BoxSpec]) -> Iterator[np.ndarray]:
        """In turn, as `making.make` asks for them."""
        for spec in specs:
            part = self._parts[spec.name, spec.box.offset]
            region = tuple(slice(low, high) for low, high in spec.box.within(part.box))
            yield self._load(spec.name, part)[region] if region else self._load(spec.name, part)

    def _load(self, name: str, part: SavedBox) -> np.ndarray:
        if self._loaded is None or self._loaded[0] is not part:
            self._loaded = None
            tensor = _item(self._theirs.folder, to_dcp(name), self._theirs.tensors[name], part)
            self._loaded = (part, array_of(tensor.contiguous()))
        return self._loaded[1]


def _item(folder: Path, name: str, saved: SavedTensor, part: SavedBox) -> torch.Tensor:
    """A part as torch saved it. Raises CorruptCheckpointError naming tensor and file where it is not what the metadata says."""
    path = folder / part.file
    try:
        with _window(path, part.offset, part.length) as file:
            tensor = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{name}: {path}: {error.strerror or error}") from error
    except Exception as error:  # torch's readers raise anything over damaged bytes
        first, *more = [text for text in str(error).split("\n\n") if text.strip()] or [""]
        reason = more[0] if more and first.startswith("Weights only") else first  # torch's first words are about its options
        fault = f"not a tensor that torch saved: {type(error).__name__}: {one_line(reason, 120)}"
        raise CorruptCheckpointError(f"{name}: {path}: at byte {part.offset}: {fault}") from error
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        raise CorruptCheckpointError(f"{name}: {path}: at byte {part.offset}: not a dense tensor")
    kind = str(tensor.dtype).removeprefix("torch.")
    if (kind, tuple(tensor.shape)) != (saved.dtype, part.box.shape):
        fault = f"{kind} of shape {tuple(tensor.shape)}, the metadata says {saved.dtype} of shape {part.box.shape}"
        raise CorruptCheckpointError(f"{name}: {path}: at byte {part.offset}: {fault}")
    return tensor.detach()


@contextmanager
def _window(path: Path, offset: int, length: int) -> Iterator[IO[bytes]]:
    """A run of bytes of a file as a file."""
    with open(path, "rb", buffering=0) as file, io.BufferedReader(_Window(file, offset, length)) as buffered:
        yield buffered


class _Window(io.RawIOBase):
    def __init__(self, file: io.FileIO, offset: int, length: int) -> None:
        self._file, self._offset, self._length = file, offset, length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        view = memoryview(buffer)[: max(0, self._length - self._at)]
        self._file.seek(self._offset + self._at)
        count = self._file.readinto(view) or 0
        self._at += count
        return count
