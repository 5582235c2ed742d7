"""What can be told of a checkpoint without reading its tensors: its manifest, its files' sizes and times, what the history says."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmtrain.errors import CheckpointError, ConfigError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import summary
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest
from slurmtrain.store.verify import read_manifest, size_problems
from slurmtrain.telemetry.history import read_acts

VERIFIED = "verify"
"""The act by which the history remembers that the bytes of a checkpoint were compared: `step-00000300 full good`."""
_DAY_S = 86400.0


@dataclass(frozen=True)
class Sight:
    """A checkpoint's folder as it was seen. `manifest` None: it cannot be read, and `problem` says why; `problem` empty: the files are
    there in their sizes. `touched`: of its files, the time of the one that nobody touched for the longest.
    """

    folder: Path
    manifest: Manifest | None
    problem: str
    t: float
    bytes: int
    files: int
    touched: float


@dataclass(frozen=True)
class Verified:
    """When its bytes were compared, how (full, sampled), and whether they were good."""

    t: float
    policy: str
    good: bool


def look(folder: Path) -> Sight:
    """One stat a file. Raises FileNotFoundError where there is no such folder (any more): whatever else is wrong is the sight's problem."""
    made = folder.lstat().st_mtime
    stats: list[os.stat_result] = []
    found: tuple[Manifest | None, str, float]
    try:
        for path in folder.iterdir():
            with suppress(OSError):  # `size_problems` has a word for it
                stats.append(path.stat())
        whole = read_manifest(folder)
    except OSError as error:
        found = None, f"{folder}: {error.strerror or error}", made
    except CheckpointError as error:
        found = None, str(error), made
    else:
        problems = size_problems(folder, whole)
        found = whole, summary(problems) if problems else "", whole.t or _written(folder, made)
    manifest, problem, t = found
    if problem:
        folder.lstat()  # it may have gone meanwhile
    touched = min((max(one.st_mtime, one.st_atime) for one in stats), default=made)
    return Sight(folder, manifest, problem, t, sum(one.st_size for one in stats), len(stats), touched)


def _written(folder: Path, else_t: float) -> float:
    """By its manifest's own time: one of version 1 does not say."""
    try:
        return (folder / MANIFEST_NAME).stat().st_mtime
    except OSError:
        return else_t


def verifications(run: RunDir) -> Callable[[Sight], Verified | None]:
    """Tells the newest comparison of a checkpoint's bytes that the history knows; one of before it was written is another's."""
    found: dict[str, Verified] = {}
    for act in read_acts(run):
        if act.what == VERIFIED and len(words := act.detail.split()) == 3:
            found[words[0]] = Verified(act.t, words[1], words[2] == "good")

    def told(sight: Sight) -> Verified | None:
        one = found.get(sight.folder.name)
        return one if one is not None and one.t >= sight.t else None

    return told


def layout_text(layout: Mapping[str, Any]) -> str:
    """A layout in short: the axes that are longer than 1.

    >>> layout_text({"world": 16, "tp": 2, "cp": 1, "dp": 4, "pp": 2, "vp": 2, "dp_mode": "fsdp"}), layout_text({"world": 1, "tp": 1})
    ('tp2 pp2 vp2 dp4 fsdp', '1 rank')
    """
    parts = [f"{axis}{layout[axis]}" for axis in ("tp", "cp", "pp", "vp", "ep", "dp") if _more_than_1(layout.get(axis))]
    if parts:
        mode = layout.get("dp_mode")
        return " ".join([*parts, str(mode)] if mode not in {None, "ddp"} and _more_than_1(layout.get("dp")) else parts)
    world = layout.get("world")
    return "" if world is None else f"{world} rank{'' if world == 1 else 's'}"


def _more_than_1(value: Any) -> bool:
    return isinstance(value, int) and value > 1


def purge_days_of(run: RunDir | None) -> int | None:
    """After how many untouched days the site removes a file; None where it does not, or nobody knows the site."""
    from slurmtrain.config.stored import read_site

    if run is None:
        return None
    try:
        return read_site(run.site_json).storage.purge_days
    except ConfigError:
        return None


def purge_time(sight: Sight, days: int | None) -> float | None:
    """When the first of its files goes if nobody touches it, seconds since 1970."""
    return None if days is None else sight.touched + days * _DAY_S


def age_text(seconds: float) -> str:
    """How long, in one unit.

    >>> age_text(42), age_text(600), age_text(7300), age_text(3 * 86400)
    ('42 s', '10 min', '2 h', '3 d')
    """
    for unit, size, below in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 2 * _DAY_S)):
        if seconds < below:
            return f"{max(0.0, seconds) / size:.0f} {unit}"
    return f"{seconds / _DAY_S:.0f} d"


def when_text(t: float, now: float) -> str:
    """Date and time, and how far from now."""
    from slurmtrain.resilience.lines import stamp

    return f"{stamp(t)} ({f'in {age_text(t - now)}' if t > now else f'{age_text(now - t)} ago'})"
