"""Checkpoints that a script of the user's writes in its own form: known by name, or by a file that names the newest.

What the script told itself (`slurmtrain.entry.durable`) lies in the run folder's `told.json`: `{"v":1,"step":40,"path":"/.../ckpt-40.pt"}`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.atomic import Disk, to_json
from slurmtrain.config.entry import EntryConfig, parts
from slurmtrain.rundir import RunDir
from slurmtrain.units import parse_step

TOLD_VERSION = 1
_NUMBER = re.compile(r"\s*(\d{1,18})\s*")
_SHORT_BYTES = 64


@dataclass(frozen=True)
class Foreign:
    """A script's checkpoint. `path`: what the script goes on from; of a pattern, up to the part that holds the step."""

    step: int
    path: Path


def newest_foreign(run: RunDir, entry: EntryConfig) -> Foreign | None:
    """The newest that a script has left, by its patterns, its file and its own word. Raises OSError where a folder cannot be read."""
    entry = entry.resolved()
    found = [*matching(run.path, entry.checkpoint)] if entry.checkpoint else []
    found += [one for one in (_by_file(run.path, entry.newest_file), read_told(run)) if one is not None]
    return max(found, key=lambda one: one.step, default=None)


def newest_seen(run: RunDir, pattern: str) -> int | None:
    """The highest step that names of this pattern tell. Raises OSError."""
    return max((one.step for one in matching(run.path, pattern)), default=None)


def matching(base: Path, pattern: str) -> Iterator[Foreign]:
    """All that fits a pattern of a path. Raises OSError for a folder that cannot be read; one that is not there holds nothing."""
    start = Path("/") if pattern.startswith("/") else base
    for step, path, _ in _walk(start, list(parts(pattern)), None, None):
        if step is not None and path is not None:
            yield Foreign(step, path)


def _walk(
    folder: Path, rest: list[tuple[str, bool]], step: int | None, told_by: Path | None
) -> Iterator[tuple[int | None, Path | None, Path]]:
    if not rest:
        yield step, told_by, folder
        return
    (part, literal), below = rest[0], rest[1:]
    if literal:
        if os.path.lexists(folder / part):
            yield from _walk(folder / part, below, step, told_by)
        return
    for name in _names(folder):
        if form := re.fullmatch(part, name):
            told = parse_step(form.groupdict().get("step") or "")
            here = (told, folder / name) if told is not None else (step, told_by)
            yield from _walk(folder / name, below, *here)


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _by_file(base: Path, name: str | None) -> Foreign | None:
    """What the file names; none where it is not there, or holds no number ("release", of weights that no training made)."""
    if name is None:
        return None
    path = base / name
    try:
        with open(path, "rb") as file:
            form = _NUMBER.fullmatch(file.read(_SHORT_BYTES).decode(errors="replace"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Foreign(int(form[1]), path.parent) if form else None


def read_told(run: RunDir) -> Foreign | None:
    """What the script said last; none where its path is gone, or it said nothing that can be read."""
    try:
        raw = json.loads(run.told_json.read_bytes())
        told = Foreign(int(raw["step"]), Path(str(raw["path"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return told if os.path.lexists(told.path) else None


def write_told(run: RunDir, told: Foreign, disk: Disk) -> None:
    """Raises OSError."""
    disk.write(run.told_json, to_json({"v": TOLD_VERSION, "step": told.step, "path": str(told.path)}))
