"""The commit protocol: how a checkpoint comes to be seen, whole or not at all.

    1  committer   owner check; leftovers of older attempts go; an empty staging folder `.step-SSSSSSSS.aAAAA.tmp`       (open_staging)
    2  writers     each makes its own files in it and fsyncs them                                                  (checkpoint.writing)
    3  committer   hears of every file; index and sizes on disk are compared with what the writers say; whatever is no part of the
                   checkpoint goes; the manifest is written last and fsynced; the folder is fsynced; owner check; one rename to
                   `step-SSSSSSSS`; the parent folder is fsynced                                                             (publish)
    4  committer   old ones go                                                                                     (retention.retain)

A process may die, and the power fail, between any two system calls. Before the rename there is nothing but a staging folder, which no
reader looks at and the next owner removes. After it the checkpoint is whole: every byte and every name in the folder was durable before.
If the power fails before the parent folder is durable, the rename may be undone; the checkpoint is then not there, the ones before are,
for nothing is removed before `publish` has returned. The attempt in the folder's name keeps a hung attempt that wakes up from writing
into its successor's files, and the owner check keeps it from publishing; where it hangs behind that check, its folder is either whole or
gone, for leftovers go by a rename, too. Nothing is ever overwritten: a checkpoint of the same step
that verifies stays as it is, one that does not is set aside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from slurmtrain.atomic import SystemDisk
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir, is_trash, staging_attempt, trash_of_staging
from slurmtrain.store.aside import set_aside
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest
from slurmtrain.store.space import Need, full_disk
from slurmtrain.store.verify import index_problems, size_problems, verify
from slurmtrain.syscalls import SYSTEM, Syscalls, remove_tree, write_new

OwnerCheck = Callable[[], None]
"""Raises OwnershipError when owner.json names another attempt than the caller's."""


def leftovers(names: Collection[str], attempt: int) -> list[str]:
    """Folder names that the owner `attempt` may remove: staging of its own and older attempts, and trash; never a newer attempt's.

    Trash comes first, for staging folders become trash.

    >>> leftovers([".step-00000005.a0001.tmp", ".step-00000010.a0003.tmp", ".step-00000005.trash", "step-00000005"], 2)
    ['.step-00000005.trash', '.step-00000005.a0001.tmp']
    """
    own = sorted(name for name in names if (n := staging_attempt(name)) is not None and n <= attempt)
    return [*sorted(name for name in names if is_trash(name)), *own]


def open_staging(
    run: RunDir, step: int, attempt: int, owner_check: OwnerCheck, *, calls: Syscalls = SYSTEM, size: Need | None = None
) -> Path | None:
    """An empty staging folder for this step; None when a checkpoint of this step is there already and verifies.

    `size`: what is going to be written. Raises OwnershipError before anything is touched, CheckpointError where the disk has no room
    for `size`, OSError when it refuses.
    """
    owner_check()
    _make_folder(run.checkpoints, calls)
    for name in leftovers(_names(run.checkpoints), attempt):
        discard(run.checkpoints / name, calls)
    if run.checkpoint(step).exists() and not verify(run.checkpoint(step)):
        calls.fsync_dir(run.checkpoints)  # whoever published it may have been refused this, or have died before it
        return None
    if size is not None and (short := full_disk(run.checkpoints, size)):
        raise CheckpointError(f"checkpoint of step {step} not begun: {short}")
    staging = run.staging(step, attempt)
    calls.mkdir(staging)
    return staging


def publish(run: RunDir, staging: Path, manifest: Manifest, owner_check: OwnerCheck, *, calls: Syscalls = SYSTEM) -> Path:
    """Write the manifest and rename the staging folder to its final name, which is returned.

    Raises CheckpointError where boxes do not tile, a file is not what its writer said, or a checkpoint of this step is there and
    verifies; OwnershipError where another attempt owns the run; OSError when the disk refuses.
    """
    final = run.checkpoint(manifest.step)
    if problems := index_problems(final, manifest) or size_problems(staging, manifest):
        raise CheckpointError(f"{staging}: not published: {'; '.join(problems[:3])}")
    for name in _names(staging):
        if name not in manifest.files:
            calls.unlink(staging / name)
    data = manifest.to_json()
    write_new(calls, staging / MANIFEST_NAME, data)
    owner_check()
    if final.exists():
        _make_way(run, manifest.step, calls)
    try:
        SystemDisk(calls).publish_dir(staging, final)
    except FileNotFoundError:  # NFS may do it, lose its answer, and try again
        if not _is_published(final, data):
            raise
        calls.fsync_dir(final.parent)
    return final


def discard(staging: Path, calls: Syscalls = SYSTEM) -> None:
    """Remove a staging folder after a failed save; what cannot be removed now is a leftover of the next save.

    It goes by one rename first: whoever hangs before the rename that publishes, and wakes up, finds nothing there and not a part of
    it. Files that a hung attempt holds open may stay on NFS.
    """
    with suppress(OSError):
        remove_tree(calls, _out_of_reach(staging, calls))


def _out_of_reach(folder: Path, calls: Syscalls) -> Path:
    """Where the folder is now."""
    trash = trash_of_staging(folder.name)
    if trash is None:
        return folder
    try:
        calls.rename(folder, folder.with_name(trash))
    except OSError:
        return folder
    return folder.with_name(trash)


def _make_way(run: RunDir, step: int, calls: Syscalls) -> None:
    folder = run.checkpoint(step)
    problems = verify(folder)
    if not problems:
        raise CheckpointError(f"{folder}: is there already and verifies: not written again")
    set_aside(run, step, problems[0], calls=calls)


def _is_published(final: Path, data: bytes) -> bool:
    try:
        return (final / MANIFEST_NAME).read_bytes() == data
    except OSError:
        return False


def _make_folder(folder: Path, calls: Syscalls) -> None:
    """Make a folder, and those above it, durable by name."""
    if folder.is_dir():
        return
    _make_folder(folder.parent, calls)
    with suppress(FileExistsError):
        calls.mkdir(folder)
    calls.fsync_dir(folder.parent)


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder))
