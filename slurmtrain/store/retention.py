"""Which checkpoints go: a pure decision, and the deed.

A checkpoint goes by one rename to `.step-SSSSSSSS.trash`, made durable before its first file is deleted, so that no half is ever listed;
what a killed process left under such a name the next save removes. What is deleted is never read again, so no order matters there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from slurmtrain.clock import Clock, SystemClock
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.leases import leased
from slurmtrain.store.listing import steps_present
from slurmtrain.store.manifest import MANIFEST_NAME
from slurmtrain.store.verify import read_manifest
from slurmtrain.syscalls import SYSTEM, Syscalls, remove_tree

_CLOCK = SystemClock()


@dataclass(frozen=True)
class Kept:
    """A checkpoint that is there: its step, when it was written (unix seconds), and metrics by name."""

    step: int
    t: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RetentionPolicy:
    """What stays: the newest `keep`; every multiple of `every_steps`; the newest of each span of `every_hours`; the `best` lowest."""

    keep: int
    every_steps: int | None = None
    every_hours: float | None = None
    best: int = 0
    best_metric: str | None = None

    @property
    def needs_manifests(self) -> bool:
        """Whether steps alone do not decide."""
        return self.every_hours is not None or (self.best > 0 and self.best_metric is not None)


def to_remove(kept: Sequence[Kept], policy: RetentionPolicy, *, durable: int, leased: AbstractSet[int] = frozenset()) -> list[int]:
    """Steps to remove, oldest first: those before `durable` that no rule keeps and nobody has leased.

    `durable` is the newest step known to verify: it and what is later always stay. Later ones are those that did not verify when the
    run came back; they count for nothing, and give way when the run gets there again. To ask again after the removal gives nothing.

    >>> to_remove([Kept(10), Kept(20), Kept(30), Kept(40)], RetentionPolicy(keep=2), durable=40)
    [10, 20]
    >>> to_remove([Kept(10), Kept(20), Kept(30), Kept(40)], RetentionPolicy(keep=1, every_steps=20), durable=40, leased={30})
    [10]
    """
    assert policy.keep >= 1, policy
    whole = sorted((one for one in kept if one.step <= durable), key=lambda one: one.step)
    stays = {durable, *leased, *(one.step for one in whole[-policy.keep :])}
    if policy.every_steps is not None:
        stays |= {one.step for one in whole if one.step % policy.every_steps == 0}
    if policy.every_hours is not None:
        newest = {math.floor(one.t / (policy.every_hours * 3600)): one.step for one in sorted(whole, key=lambda one: (one.t, one.step))}
        stays |= set(newest.values())
    stays |= {step for _, step in _by_metric(whole, policy)[: policy.best]}
    return sorted({one.step for one in whole} - stays)


def _by_metric(kept: Iterable[Kept], policy: RetentionPolicy) -> list[tuple[float, int]]:
    """(metric, step) of those that have it, the best first; of two alike the older."""
    if policy.best_metric is None:
        return []
    values = [(one.metrics.get(policy.best_metric, math.nan), one.step) for one in kept]
    return sorted((value, step) for value, step in values if not math.isnan(value))


def retain(run: RunDir, policy: RetentionPolicy, durable: int, *, calls: Syscalls = SYSTEM, clock: Clock = _CLOCK) -> list[str]:
    """Remove what the policy lets go, now that the checkpoint of step `durable` is known to verify.

    Trouble comes back in words and is never raised: the new checkpoint is durable, and disk space is not worth a run.
    """
    try:
        going = to_remove(
            kept(run, manifests=policy.needs_manifests), policy, durable=durable, leased=leased(run, clock.time(), calls=calls)
        )
    except OSError as error:
        return [f"{run.checkpoints}: old checkpoints were not removed: {error.strerror or error}"]
    return remove(run, going, calls, clock=clock)


def kept(run: RunDir, *, manifests: bool = True) -> list[Kept]:
    """The checkpoints that are there, by step; with `manifests` also when they were written and their metrics. Raises OSError."""
    steps = steps_present(run.checkpoints)
    return [_kept(run.checkpoint(step), step) for step in steps] if manifests else [Kept(step) for step in steps]


def _kept(folder: Path, step: int) -> Kept:
    try:
        status = (folder / MANIFEST_NAME).stat()
    except OSError:
        return Kept(step)
    return _read(folder, step, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1024)
def _read(folder: Path, step: int, changed_ns: int, size: int) -> Kept:  # noqa: ARG001 by size and time a replaced one is told apart
    try:
        manifest = read_manifest(folder)
    except CheckpointError:
        return Kept(step, changed_ns / 1e9)
    metrics = manifest.state.get("metrics", {})
    numbers = {name: float(value) for name, value in metrics.items() if type(value) in {int, float}} if isinstance(metrics, dict) else {}
    return Kept(step, manifest.t or changed_ns / 1e9, numbers)


def remove(run: RunDir, steps: Iterable[int], calls: Syscalls = SYSTEM, *, clock: Clock = _CLOCK) -> list[str]:
    """Remove checkpoints that nobody has leased; what could not be removed comes back in words, and nothing is raised."""
    problems = []
    for step in steps:
        try:
            _remove(run, step, calls, clock)
        except OSError as error:
            problems.append(f"{run.checkpoint(step)}: not removed: {error.strerror or error}")
    return problems


def _remove(run: RunDir, step: int, calls: Syscalls, clock: Clock) -> None:
    folder, trash = run.checkpoint(step), run.trash(step)
    remove_tree(calls, trash)
    try:
        calls.rename(folder, trash)
    except FileNotFoundError:
        return  # gone: by another hand
    if step in leased(run, clock.time(), calls=calls):
        calls.rename(trash, folder)
        return
    calls.fsync_dir(run.checkpoints)
    remove_tree(calls, trash)
