"""Tokens written, piece by piece, in any of the formats; they appear whole or not at all, and another's files are never replaced."""

from __future__ import annotations

import errno
import os
import shutil
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import xxhash

from slurmtrain.aside import aside, sweep
from slurmtrain.atomic import Disk, SystemDisk, fsync_dir, to_json
from slurmtrain.data.index import ANSWERS_NAME, DOCUMENTS_NAME, INDEX_NAME, TOKENIZER_NAME, TOKENS_NAME, DataFile, TokenIndex, read_index
from slurmtrain.data.megatron import MOST_IN_SEQUENCE, pair_index
from slurmtrain.data.pair import answers_of, bin_of, idx_of, prefix_of
from slurmtrain.data.summary import HDF5_SUFFIXES, Format
from slurmtrain.data.tokens import numpy_dtype
from slurmtrain.errors import DataError, UserError, one_line

_SHORT = 1 << 16
"""Tokens below it fit two bytes."""
_CHUNK = 1 << 18
_TRIES = 8
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE, errno.ETIMEDOUT})
"""The disk's faults; any other refusal is of a place where nothing can be made."""


@dataclass(frozen=True)
class Piece:
    """Tokens of a document, int64, with their marks (bool) where answers are marked; `end`: the document ends with them."""

    tokens: np.ndarray
    marks: np.ndarray | None
    end: bool


@dataclass(frozen=True)
class About:
    """What is known of all tokens. `tokenizer`: kept beside them where the format has a place for it (a folder)."""

    vocab: int | None
    eod: int | None
    answers: bool = False
    tokenizer: bytes | None = None


@dataclass(frozen=True)
class Stored:
    """What was written; `unchanged`: the same was there already."""

    tokens: int
    documents: int
    unchanged: bool = False


class _Writer(Protocol):
    def write(self, piece: Piece) -> None: ...

    def finish(self, disk: Disk, *, force: bool) -> Stored: ...

    def give_up(self) -> None:
        """Leave nothing behind; also called after `finish`."""


def store(pieces: Iterable[Piece], out: Path, kind: Format, about: About, *, force: bool = False, disk: Disk | None = None) -> Stored:
    """Write pieces as `out`: a folder, the prefix of a Megatron pair, or an HDF5 file. A link is followed, not replaced.

    Raises UserError: `out` is taken by other tokens (`force` replaces them) or by something else (never replaced), or nothing can be made
    there. Raises DataError when the disk is full or fails.
    """
    writer: _Writer | None = None
    try:
        place = place_of(out, kind)
        refuse_foreign(place, kind, force=force)
        place.parent.mkdir(parents=True, exist_ok=True)
        sweep(place)
        writer = _WRITERS[kind](place, about)
        for piece in pieces:
            writer.write(piece)
        return writer.finish(disk or SystemDisk(), force=force)
    except OSError as error:
        raise _refused(out, error) from error
    finally:
        if writer is not None:
            writer.give_up()


def _refused(out: Path, error: OSError) -> UserError | DataError:
    says = one_line(error.strerror or str(error), 200)
    if error.errno is None or error.errno in _FULL:
        return DataError(f"{out}: {says}: nothing was changed; make room, or choose another --out")
    return UserError(f"{out}: {says}: choose an --out where you can write")


def place_of(out: Path, kind: Format) -> Path:
    """Where `out` really lies. Raises UserError for the name of an HDF5 file that nobody would take for one."""
    if kind == "hdf5" and out.suffix not in HDF5_SUFFIXES:
        raise UserError(f"{out}: the name of an HDF5 file ends with {' or '.join(HDF5_SUFFIXES)}: use {out}{HDF5_SUFFIXES[0]}")
    place = Path(os.path.realpath(out))
    return prefix_of(place) if kind == "megatron" else place


def check_place(out: Path, kind: Format, *, force: bool) -> None:
    """Raise UserError where `store` would from the beginning."""
    try:
        refuse_foreign(place_of(out, kind), kind, force=force)
    except OSError as error:
        raise _refused(out, error) from error


def refuse_foreign(out: Path, kind: Format, *, force: bool) -> None:
    """Raise UserError for an `out` that is taken by something else than tokens."""
    if kind != "folder":
        taken = [path for path in ([out] if kind == "hdf5" else [bin_of(out), idx_of(out)]) if path.exists()]
        if taken and not (force and all(path.is_file() for path in taken)):
            raise UserError(f"{taken[0]}: is there already: choose another --out, or give --force to replace it")
    elif out.is_dir():
        if not (out / INDEX_NAME).exists() and any(out.iterdir()):
            raise UserError(f"{out}: holds files that are not tokens: choose another --out")
    elif out.exists() or out.is_symlink():
        raise UserError(f"{out}: is there and is not a folder: choose another --out")


class _SummedFile:
    """Writes a new file and sums what goes through."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 closed by finish
        self._sum, self.size = xxhash.xxh3_64(), 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._sum.update(data)
        self.size += len(data)

    def finish(self) -> DataFile:
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        return DataFile(self.size, str(self._sum.hexdigest()))

    def close(self) -> None:
        self._file.close()


class _Folder:
    """A folder of tokens, made beside its place."""

    def __init__(self, out: Path, about: About) -> None:
        assert about.vocab is not None, "a folder tells its vocabulary"
        assert about.eod is not None, "a folder tells its end of documents"
        self._out, self._about, self._eod, self._vocab = out, about, about.eod, about.vocab
        self._staging = aside(out)
        self._staging.mkdir()
        self._short = about.vocab <= _SHORT
        self._kind = numpy_dtype("uint16" if self._short else "uint32")
        self._files = {name: _SummedFile(self._staging / name) for name in (TOKENS_NAME, *((ANSWERS_NAME,) if about.answers else ()))}
        self._tokens, self._ends = 0, array("q", [0])

    def write(self, piece: Piece) -> None:
        self._files[TOKENS_NAME].write(piece.tokens.astype(self._kind).tobytes())
        if ANSWERS_NAME in self._files:
            self._files[ANSWERS_NAME].write(marks_of(piece).tobytes())
        self._tokens += len(piece.tokens)
        if piece.end:
            self._ends.append(self._tokens)

    def finish(self, disk: Disk, *, force: bool) -> Stored:
        for name, data in ((DOCUMENTS_NAME, np.array(self._ends, "<i8").tobytes()), (TOKENIZER_NAME, self._about.tokenizer)):
            if data is not None:
                self._files[name] = _SummedFile(self._staging / name)
                self._files[name].write(data)
        files = {
            name: self._files[name].finish() for name in (TOKENS_NAME, DOCUMENTS_NAME, ANSWERS_NAME, TOKENIZER_NAME) if name in self._files
        }
        documents = len(self._ends) - 1
        index = TokenIndex("uint16" if self._short else "uint32", self._tokens, documents, self._vocab, self._eod, files)
        disk.write(self._staging / INDEX_NAME, to_json(index.to_json()))
        return Stored(self._tokens, documents, _publish(self._staging, self._out, index, disk, force=force))

    def give_up(self) -> None:
        for file in self._files.values():
            file.close()
        shutil.rmtree(self._staging, ignore_errors=True)


def marks_of(piece: Piece) -> np.ndarray:
    """A byte for each token; a piece without marks has no answers."""
    return np.zeros(len(piece.tokens), np.uint8) if piece.marks is None else piece.marks.astype(np.uint8)


def _publish(staging: Path, out: Path, index: TokenIndex, disk: Disk, *, force: bool) -> bool:
    """Rename to the final name; True when the same content is there already. Others may do the same at this moment."""
    for _ in range(_TRIES):
        if out.is_dir() and any(out.iterdir()):
            if _index_of(out) == index:
                return True
            if not force:
                raise UserError(f"{out}: holds other tokens: choose another --out, or give --force to replace them")
        with suppress(FileExistsError):
            _swap(staging, out, disk, force=force)
            return False
    raise DataError(f"{out}: others write it again and again: choose another --out")


def _swap(staging: Path, out: Path, disk: Disk, *, force: bool) -> None:
    """Put `staging` in the place of `out`, of an empty one without `force`. Raises FileExistsError when another was quicker."""
    old = aside(out, "old")
    with suppress(FileNotFoundError):
        if force:
            out.rename(old)
        else:
            _remove_empty(out)
    try:
        disk.publish_dir(staging, out)
    except OSError:
        if old.exists() and not out.exists():
            old.rename(out)
        raise
    finally:
        if out.exists():
            shutil.rmtree(old, ignore_errors=True)


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileExistsError(errno.EEXIST, "is no longer empty", str(folder)) from error


def _index_of(folder: Path) -> TokenIndex | None:
    """The index of a folder of tokens; None where there is none, or one that is damaged."""
    try:
        return read_index(folder)
    except DataError:
        return None


class _Pair:
    """A Megatron pair. The .idx comes last: without it there is no pair."""

    def __init__(self, out: Path, about: About) -> None:
        self._out = out
        self._dtype = "<u2" if about.vocab is not None and about.vocab <= _SHORT else "<i4"
        self._new = aside(out)
        self._files = {bin_of(self._new): _SummedFile(bin_of(self._new))}
        if about.answers:
            self._files[answers_of(self._new)] = _SummedFile(answers_of(self._new))
        self._sizes, self._firsts, self._open, self._tokens = array("i"), array("q", [0]), 0, 0

    def write(self, piece: Piece) -> None:
        self._files[bin_of(self._new)].write(piece.tokens.astype(self._dtype).tobytes())
        if answers_of(self._new) in self._files:
            self._files[answers_of(self._new)].write(marks_of(piece).tobytes())
        self._open += len(piece.tokens)
        self._tokens += len(piece.tokens)
        if piece.end:
            while self._open > MOST_IN_SEQUENCE:
                self._sizes.append(MOST_IN_SEQUENCE)
                self._open -= MOST_IN_SEQUENCE
            self._sizes.append(self._open)
            self._firsts.append(len(self._sizes))
            self._open = 0

    def finish(self, disk: Disk, *, force: bool) -> Stored:  # noqa: ARG002 a pair is two renames, not one
        index = _SummedFile(idx_of(self._new))
        self._files[idx_of(self._new)] = index
        for part in pair_index(self._dtype, np.array(self._sizes, np.int32), np.array(self._firsts, np.int64)):
            index.write(part)
        for file in self._files.values():
            file.finish()
        refuse_foreign(self._out, "megatron", force=force)
        for path in (idx_of(self._out), answers_of(self._out)):
            path.unlink(missing_ok=True)
        for name in (bin_of, answers_of, idx_of):
            if name(self._new) in self._files:
                name(self._new).rename(name(self._out))
        fsync_dir(self._out.parent)
        return Stored(self._tokens, len(self._firsts) - 1)

    def give_up(self) -> None:
        for path, file in self._files.items():
            file.close()
            path.unlink(missing_ok=True)


class _Hdf5:
    """An HDF5 file of tokens, made beside its place: contiguous, so that it can be mapped, once its length is known."""

    def __init__(self, out: Path, about: About) -> None:
        self._out, self._about = out, about
        self._new = aside(out)
        self._raw = self._new.with_name(self._new.name + ".raw")
        self._kind = np.dtype("<u2" if about.vocab is not None and about.vocab <= _SHORT else "<u4")
        self._files = [_SummedFile(self._raw), *([_SummedFile(self._marks)] if about.answers else [])]
        self._tokens, self._ends = 0, array("q", [0])

    @property
    def _marks(self) -> Path:
        return self._new.with_name(self._new.name + ".marks")

    def write(self, piece: Piece) -> None:
        for file, data in zip(self._files, (piece.tokens.astype(self._kind), marks_of(piece)), strict=False):
            file.write(data.tobytes())
        self._tokens += len(piece.tokens)
        if piece.end:
            self._ends.append(self._tokens)

    def finish(self, disk: Disk, *, force: bool) -> Stored:  # noqa: ARG002 h5py writes the file
        for file in self._files:
            file.finish()
        try:
            self._fill()
        except RuntimeError as error:  # of HDF5, when the disk refuses at its last flush
            raise OSError(str(error)) from error
        with open(self._new, "rb") as done:
            os.fsync(done.fileno())
        refuse_foreign(self._out, "hdf5", force=force)
        self._new.replace(self._out)
        fsync_dir(self._out.parent)
        return Stored(self._tokens, len(self._ends) - 1)

    def _fill(self) -> None:
        import h5py  # noqa: PLC0415 slow to import, for this format alone

        with h5py.File(self._new, "w") as made:
            raws = [("tokens", self._raw, self._kind), ("answers", self._marks, np.dtype("u1"))]
            for name, path, kind in raws[: len(self._files)]:
                into = made.create_dataset(name, (self._tokens,), kind)
                for at in range(0, self._tokens, _CHUNK):
                    into[at : at + _CHUNK] = np.fromfile(path, kind, _CHUNK, offset=at * kind.itemsize)
            made["documents"] = np.array(self._ends, np.int64)
            for name, value in (("vocab", self._about.vocab), ("eod", self._about.eod)):
                if value is not None:
                    made.attrs[name] = value

    def give_up(self) -> None:
        for file in self._files:
            file.close()
        for path in (self._raw, self._marks, self._new):
            path.unlink(missing_ok=True)


_WRITERS: dict[Format, Callable[[Path, About], _Writer]] = {"folder": _Folder, "megatron": _Pair, "hdf5": _Hdf5}
