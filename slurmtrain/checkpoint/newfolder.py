"""A folder that appears whole, by one rename, or not at all.

It is filled beside its place, under a name as `aside` says; whoever makes the same folder again removes what a killed maker left there.
Nothing half is gone on with.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slurmtrain.aside import aside, sweep
from slurmtrain.atomic import Disk, SystemDisk
from slurmtrain.errors import CheckpointError, UserError
from slurmtrain.syscalls import SYSTEM, Syscalls, remove_tree

_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG}


def check_out(out: Path) -> None:
    """Raise UserError where `out` is taken; a link to nothing is something, too."""
    try:
        taken = out.exists() or out.is_symlink()
    except OSError as error:
        raise UserError(f"{out}: {error.strerror or error}: choose another folder") from error
    if taken:
        raise UserError(f"{out}: is there already: choose another folder, or remove it")


@contextmanager
def new_folder(out: Path, *, calls: Syscalls = SYSTEM, disk: Disk | None = None) -> Iterator[Path]:
    """An empty folder to be filled with files, each durable; it becomes `out` where the body ends well, and is removed where not, with
    the folders above it that were made for it.

    Raises UserError where `out` is taken or cannot be made; CheckpointError for any OSError, of the body too.
    """
    check_out(out)
    staging = aside(out)
    above: list[Path] = []
    try:
        _make_folder(calls, out.parent, above)
        sweep(out)
        calls.mkdir(staging)
    except OSError as error:
        _remove_empty(calls, above)
        raise _refusal(out, error, "choose a folder where you can write") from error
    try:
        yield staging
        (disk or SystemDisk(calls)).publish_dir(staging, out)
    except BaseException as error:
        if isinstance(error, OSError) and not staging.exists():
            raise _refusal(out, error, "it is there, whole, but a failure of power may take it away") from error
        with suppress(OSError):  # what stays is swept by the next maker
            remove_tree(calls, staging)
        _remove_empty(calls, above)
        if isinstance(error, FileExistsError):
            raise UserError(f"{out}: appeared meanwhile: choose another folder, or remove it") from error
        if isinstance(error, OSError):
            raise _refusal(out, error, "nothing was made") from error
        raise


def _refusal(out: Path, error: OSError, then: str) -> CheckpointError | UserError:
    kind = UserError if error.errno in _REFUSED else CheckpointError
    return kind(f"{out}: {error.strerror or error}: {then}")


def _make_folder(calls: Syscalls, folder: Path, made: list[Path]) -> None:
    """With those above it, durably; `made` gets those that were not there. Raises OSError."""
    if folder.is_dir():
        return
    if folder.exists() or folder.parent == folder:
        raise NotADirectoryError(errno.ENOTDIR, "is a file, not a folder", str(folder))
    _make_folder(calls, folder.parent, made)
    with suppress(FileExistsError):  # made by another meanwhile
        calls.mkdir(folder)
        made.append(folder)
    calls.fsync_dir(folder.parent)


def _remove_empty(calls: Syscalls, folders: list[Path]) -> None:
    """Folders that were made for nothing, the innermost first."""
    for folder in reversed(folders):
        with suppress(OSError):  # another uses it by now
            calls.rmdir(folder)
