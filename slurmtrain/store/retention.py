"""Which checkpoints go: a pure decision, and the deed (rename to a trash name first, so that no half is ever listed)."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

from slurmtrain.atomic import fsync_dir
from slurmtrain.rundir import RunDir


def to_remove(steps: Iterable[int], keep: int, durable: int) -> list[int]:
    """Steps to remove, oldest first, so that the newest `keep` up to `durable` stay.

    `durable` is the newest step known to verify and always stays. Later steps are those that did not verify when the run came
    back: they stay for whoever looks into it, count for nothing, and are replaced when the run gets there again.

    >>> to_remove([10, 20, 30, 40], keep=2, durable=40)
    [10, 20]
    >>> to_remove([10, 20, 30, 40], keep=1, durable=20)
    [10]
    """
    assert keep >= 1, keep
    candidates = sorted(step for step in set(steps) if step < durable)
    return candidates[: max(0, len(candidates) - (keep - 1))]


def remove(run: RunDir, steps: Iterable[int]) -> list[str]:
    """Remove checkpoints; what could not be removed comes back in words, and nothing is raised: disk space is not worth a run."""
    problems = []
    for step in steps:
        folder, trash = run.checkpoint(step), run.trash(step)
        try:
            if trash.exists():
                shutil.rmtree(trash)
            folder.rename(trash)
            fsync_dir(run.checkpoints)
            shutil.rmtree(trash)
        except OSError as error:
            problems.append(f"{folder}: not removed: {error.strerror or error}")
    return problems
