"""The commit protocol: how a checkpoint comes to be seen, whole or not at all.

    1  rank 0    owner check; leftovers of older attempts go; an empty staging folder `.step-SSSSSSSS.aAAAA.tmp`   (open_staging)
    2  each rank writes its own file into it and fsyncs the file                                                  (checkpoint.h5)
    3  rank 0    hears of every file; sizes on disk are compared with what the ranks say; manifest written last,
                 file and folder fsynced; owner check; one rename to `step-SSSSSSSS`; parent folder fsynced        (publish)
    4  rank 0    retention

A process may die between any two system calls: before the rename there is nothing but a staging folder, which no reader looks at and
the next owner removes; after it the checkpoint is whole. The attempt in the folder's name keeps a hung attempt that wakes up
from writing into its successor's files, and the owner check keeps it from publishing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from slurmtrain.atomic import Disk
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir, is_trash, staging_attempt
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest
from slurmtrain.store.retention import remove
from slurmtrain.store.verify import index_problems, size_problems, verify

OwnerCheck = Callable[[], None]
"""Raises OwnershipError when owner.json names another attempt than the caller's."""


def leftovers(names: Iterable[str], attempt: int) -> list[str]:
    """Folder names that the owner `attempt` may remove: staging of its own and older attempts, and trash; never a newer attempt's.

    >>> leftovers([".step-00000010.a0001.tmp", ".step-00000010.a0003.tmp", ".step-00000005.trash", "step-00000005"], 2)
    ['.step-00000005.trash', '.step-00000010.a0001.tmp']
    """
    return sorted(name for name in names if is_trash(name) or ((n := staging_attempt(name)) is not None and n <= attempt))


def open_staging(run: RunDir, step: int, attempt: int, owner_check: OwnerCheck) -> Path | None:
    """An empty staging folder for this step; None when a checkpoint of this step is there already and verifies.

    Raises OwnershipError before anything is touched, OSError when the disk refuses.
    """
    owner_check()
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    for name in leftovers((path.name for path in run.checkpoints.iterdir()), attempt):
        shutil.rmtree(run.checkpoints / name, ignore_errors=True)  # files that a hung attempt holds open may stay on NFS
    if run.checkpoint(step).exists() and not verify(run.checkpoint(step)):
        return None
    staging = run.staging(step, attempt)
    staging.mkdir()
    return staging


def publish(run: RunDir, staging: Path, manifest: Manifest, disk: Disk, owner_check: OwnerCheck) -> Path:
    """Write the manifest and rename the staging folder to its final name.

    A checkpoint of this step that does not verify (open_staging looked) is removed first. Raises CheckpointError when boxes do not
    tile or a file is not what its rank said, OwnershipError when another attempt owns the run, OSError when the disk refuses.
    """
    final = run.checkpoint(manifest.step)
    if problems := index_problems(final, manifest) or size_problems(staging, manifest):
        raise CheckpointError(f"{staging}: not published: {'; '.join(problems[:3])}")
    disk.write(staging / MANIFEST_NAME, manifest.to_json())
    owner_check()
    if final.exists() and (kept := remove(run, [manifest.step])):
        raise CheckpointError(kept[0])
    disk.publish_dir(staging, final)
    return final


def discard(staging: Path) -> None:
    """Remove a staging folder after a failed save; what cannot be removed now is a leftover of the next save."""
    shutil.rmtree(staging, ignore_errors=True)
