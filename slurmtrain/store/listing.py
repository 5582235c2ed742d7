"""Which checkpoints there are, and the newest that verifies."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slurmtrain.errors import CheckpointError, CorruptCheckpointError
from slurmtrain.rundir import checkpoint_step
from slurmtrain.store.manifest import Manifest
from slurmtrain.store.verify import cheap_problems, read_manifest, size_problems, sum_problems

SumCheck = Callable[[Path, Manifest], list[str]]
"""Problems that reading the bytes brings to light."""

LOOKS = 3


@dataclass(frozen=True)
class Found:
    """A checkpoint that verifies, and the newer ones that do not: (step, why), newest first.

    `tier`: "local" lies on the nodes' own disks, and `folder` holds what this node needs of it.
    """

    step: int
    folder: Path
    manifest: Manifest
    passed_over: tuple[tuple[int, str], ...] = ()
    tier: Literal["shared", "local"] = "shared"


def steps_present(checkpoints_dir: Path) -> list[int]:
    """Steps of the published checkpoints, ascending; empty where there is no folder. Raises OSError."""
    return [step for step, _ in reversed(folders_present(checkpoints_dir))]


def folders_present(checkpoints_dir: Path) -> list[tuple[int, Path]]:
    """(step, folder) of the published checkpoints, newest first; empty where there is no folder. Raises OSError."""
    try:
        names = [entry.name for entry in os.scandir(checkpoints_dir)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(((step, checkpoints_dir / name) for name in names if (step := checkpoint_step(name)) is not None), reverse=True)


def newest_verified(checkpoints_dir: Path, check: SumCheck = sum_problems) -> Found | None:
    """The newest checkpoint that verifies, and what was passed over; None where there is no checkpoint at all.

    Looks again where one went while it looked (a run that trains on has removed it, and made newer ones). Raises
    CorruptCheckpointError where there are checkpoints and none verifies: to start from nothing is a person's decision; OSError where
    the folder cannot be read.
    """
    passed_over: list[tuple[int, str]] = []
    gone: list[int] = []
    for _ in range(LOOKS):
        passed_over, gone = [], []
        for step, folder in folders_present(checkpoints_dir):
            try:
                manifest = read_manifest(folder)
                problems = cheap_problems(folder, manifest) or check(folder, manifest)
            except CheckpointError as error:
                problems = [str(error)]
            else:
                if not problems:
                    return Found(step, folder, manifest, tuple(passed_over))
            if os.path.lexists(folder):
                passed_over.append((step, summary(problems)))
            else:
                gone.append(step)
        if not gone:
            break
    if gone and not passed_over:
        raise CheckpointError(f"{checkpoints_dir}: step {gone[0]} and those before it went while they were looked at: try again")
    if passed_over:
        reasons = "; ".join(f"step {step}: {why}" for step, why in passed_over)
        raise CorruptCheckpointError(
            f"{checkpoints_dir}: no checkpoint verifies: mend one, or move the folder away to start anew ({reasons})"
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
