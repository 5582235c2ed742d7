"""Which checkpoints there are, and the newest that verifies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.errors import CheckpointError, CorruptCheckpointError
from slurmtrain.rundir import checkpoint_step
from slurmtrain.store.manifest import Manifest
from slurmtrain.store.verify import index_problems, read_manifest, size_problems, sum_problems

SumCheck = Callable[[Path, Manifest], list[str]]
"""Problems that reading the bytes brings to light; `checkpoint.state` spreads the reading over all ranks."""


@dataclass(frozen=True)
class Found:
    """A checkpoint that verifies, and the newer ones that do not: (step, why), newest first."""

    step: int
    folder: Path
    manifest: Manifest
    passed_over: tuple[tuple[int, str], ...] = ()


def steps_present(checkpoints_dir: Path) -> list[int]:
    """Steps of the published checkpoints, ascending; empty where there is no folder. Raises OSError."""
    try:
        names = [path.name for path in checkpoints_dir.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(step for name in names if (step := checkpoint_step(name)) is not None)


def folders_present(checkpoints_dir: Path) -> list[tuple[int, Path]]:
    """(step, folder) of the published checkpoints, newest first."""
    names = {checkpoint_step(path.name): path for path in checkpoints_dir.iterdir()} if checkpoints_dir.is_dir() else {}
    return [(step, names[step]) for step in reversed(steps_present(checkpoints_dir))]


def newest_verified(checkpoints_dir: Path, sum_check: SumCheck = sum_problems) -> Found | None:
    """The newest checkpoint that verifies, and what was passed over; None where there is no checkpoint at all.

    Raises CorruptCheckpointError where there are checkpoints and none verifies: to start from nothing is a person's decision.
    """
    passed_over: list[tuple[int, str]] = []
    for step, folder in folders_present(checkpoints_dir):
        try:
            manifest = read_manifest(folder)
        except CheckpointError as error:
            passed_over.append((step, str(error)))
            continue
        problems = index_problems(folder, manifest) or size_problems(folder, manifest) or sum_check(folder, manifest)
        if not problems:
            return Found(step, folder, manifest, tuple(passed_over))
        passed_over.append((step, summary(problems)))
    if passed_over:
        reasons = "; ".join(f"step {step}: {why}" for step, why in passed_over)
        raise CorruptCheckpointError(
            f"{checkpoints_dir}: no checkpoint verifies ({reasons}); mend one, or move the folder away to start anew"
        )
    return None


def newest_durable_step(checkpoints_dir: Path) -> int | None:
    """The newest step whose manifest can be read and whose files have the right sizes: cheap, for status and progress."""
    for step, folder in folders_present(checkpoints_dir):
        try:
            manifest = read_manifest(folder)
        except CheckpointError:
            continue
        if not size_problems(folder, manifest):
            return step
    return None


def summary(problems: list[str]) -> str:
    """The first problem, and how many more there are."""
    return problems[0] if len(problems) == 1 else f"{problems[0]} (and {len(problems) - 1} more)"
