"""Tokens copied to a node's own disk: SCRATCH/slurmtrain-UID/NAME-KEY/, one copy for all ranks, attempts and runs on the node.

A copy appears by one rename, after its sums have been compared: of what was read with what the index says (a folder of tokens), of
what was written with what was read. KEY changes with the tokens. What does not fit, or cannot be written, is read where it is, with a
note; tokens that are damaged at their source are an error on all ranks alike. Copies are never removed: scratch is the site's.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from slurmtrain.atomic import Disk, SystemDisk, fsync_file, to_json
from slurmtrain.config.expand import expand
from slurmtrain.data.index import INDEX_NAME, read_index
from slurmtrain.data.pair import answers_of, bin_of, idx_of
from slurmtrain.data.summary import Summary, summarize
from slurmtrain.errors import ConfigError, DataError, one_line

STAGED_NAME = "staged.json"
_BLOCK_BYTES = 16 << 20


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Node:
    """How the ranks of a node share copies.

    `scratch`: the site's node-local folder, with `~` and $VARIABLES of this node; `copier`: this rank copies (one of the node);
    `share`: collective, gives the copier's value to all ranks of its node; `disk`: the door to publishing.
    """

    scratch: Path | None
    copier: bool = True
    share: Callable[[Any], Any] = _same
    disk: Disk | None = None


ALONE = Node(None)


@dataclass(frozen=True)
class Staged:
    """Where to read each source, and what the user should know."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...]


def stage_sources(paths: Sequence[Path], most_bytes: int | None, node: Node) -> Staged:
    """Copies of the sources on this node, as far as `most_bytes` and the disk go. Collective where `node.share` is.

    Raises DataError on all ranks of the node: a source is missing or damaged.
    """
    answer = node.share(_answer(paths, most_bytes, node) if node.copier else None)
    if isinstance(answer, str):
        raise DataError(answer)
    assert isinstance(answer, Staged), answer
    return answer


def _answer(paths: Sequence[Path], most_bytes: int | None, node: Node) -> Staged | str:
    """What the copier tells: the copies, or the words of a DataError."""
    if node.scratch is None:
        return Staged(tuple(paths), ("data.stage: this site has no paths.scratch: the tokens are read where they are",))
    placed, notes, left = [], [], most_bytes
    try:
        scratch = expand(node.scratch, os.environ, where="site", key="paths.scratch")
    except ConfigError as error:
        return Staged(tuple(paths), (one_line(f"data.stage: the tokens are read where they are: {error}"),))
    try:
        for path in paths:
            source = summarize(path)
            size = sum(file.stat().st_size for file in _files(source))
            if left is not None and size > left:
                notes.append(_note(path, f"{size} bytes are more than the {left} left of data.stage_bytes"))
                placed.append(path)
                continue
            copy, why = _copied(source, size, scratch, node.disk or SystemDisk())
            placed.append(copy or path)
            notes += [_note(path, why)] if why else []
            left = left - size if left is not None and copy else left
    except DataError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or paths[len(placed)]}: {error.strerror or error}"
    return Staged(tuple(placed), tuple(notes))


def _note(path: Path, why: str) -> str:
    return one_line(f"data.stage: {path} is read where it is: {why}")


def _files(source: Summary) -> list[Path]:
    if source.format == "folder":
        return [source.path / name for name in (*read_index(source.path).files, INDEX_NAME)]
    if source.format == "hdf5":
        return [source.path]
    pair = [bin_of(source.path), idx_of(source.path)]
    return [*pair, answers_of(source.path)] if source.answers else pair


def _copied(source: Summary, size: int, scratch: Path, disk: Disk) -> tuple[Path | None, str]:
    """(the copy, ""), or (None, why there is none). Raises DataError for a damaged source."""
    base = scratch / f"slurmtrain-{os.getuid()}"
    final = base / f"{source.path.name}-{_key(source, size)}"
    staging = base / f".{final.name}.{os.getpid()}.tmp"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        for dead in _of_the_dead(base, final.name):
            shutil.rmtree(dead, ignore_errors=True)
        if _is_whole(final):
            return _inside(source, final), ""
        shutil.rmtree(final, ignore_errors=True)
        free = shutil.disk_usage(base).free
        if size > free:
            return None, f"{size} bytes do not fit, {base} has {free} free"
        staging.mkdir()
        sums = {file.name: _copy(file, staging / file.name) for file in _files(source)}
        _compare(source, sums)
        disk.write(staging / STAGED_NAME, to_json({"v": 1, "source": str(source.path), "files": sums}))
        _publish(staging, final, disk)
    except OSError as error:
        return None, f"{error.filename or base}: {error.strerror or error}"
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return _inside(source, final), ""


def _key(source: Summary, size: int) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps([source.sum, size, source.format]).encode())


def _inside(source: Summary, final: Path) -> Path:
    return final if source.format == "folder" else final / source.path.name


def _of_the_dead(base: Path, name: str) -> Iterator[Path]:
    """Half copies of processes of this node that are no more."""
    for path in base.glob(f".{name}.*.tmp"):
        pid = path.name.split(".")[-2]
        if pid.isdigit() and int(pid) != os.getpid() and not Path("/proc", pid).exists():
            yield path


def _is_whole(final: Path) -> bool:
    """Whether a copy is there and its files are as long as they were; its sums were compared when it was made."""
    try:
        files = json.loads((final / STAGED_NAME).read_bytes())["files"]
        return all((final / name).stat().st_size == told["size"] for name, told in files.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _copy(source: Path, target: Path) -> dict[str, Any]:
    """Copy a file; its size and sum. Raises OSError, also when the copy reads back differently."""
    total, size = xxhash.xxh3_64(), 0
    with open(source, "rb") as file, open(target, "xb") as out:
        while block := file.read(_BLOCK_BYTES):
            out.write(block)
            total.update(block)
            size += len(block)
    fsync_file(target)
    told = str(total.hexdigest())
    back = xxhash.xxh3_64()
    with open(target, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            back.update(block)
    if back.hexdigest() != told:
        raise OSError(None, "the copy reads back differently", str(target))
    return {"size": size, "xxh3_64": told}


def _compare(source: Summary, sums: dict[str, dict[str, Any]]) -> None:
    if source.format != "folder":
        return
    for name, told in read_index(source.path).files.items():
        if sums[name] != vars(told):
            raise DataError(f"{source.path / name}: damaged: its sum differs: build the folder again")


def _publish(staging: Path, final: Path, disk: Disk) -> None:
    """Rename to the final name; a copy that another job has published meanwhile is as good."""
    try:
        disk.publish_dir(staging, final)
    except FileExistsError:
        if not _is_whole(final):
            raise
