"""Publishing a run folder, and taking it back when its job was refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slurmtrain.cli.assemble import Draft
from slurmtrain.cli.doors import Doors
from slurmtrain.errors import SlurmtrainError
from slurmtrain.launch.prepare import RunContents, create_run, discard_run, renew_run

Undo = Callable[[], None]


def publish(made: Draft, contents: RunContents, doors: Doors, *, resume: bool) -> Undo:
    """Make the run folder, or renew it; gives back what takes a new one away again. Raises SlurmtrainError."""
    if resume:
        renew_run(made.run, contents, doors.disk)
        return lambda: None
    root = made.run.path.parent
    new_root = _make_root(root)
    try:
        create_run(made.run, contents, doors.disk)
    except BaseException:
        _remove_root(root, new=new_root)
        raise

    def undo() -> None:
        discard_run(made.run)
        _remove_root(root, new=new_root)

    return undo


def take_back(undo: Undo) -> None:
    """Undo, as far as the disk lets us: the reason for it is what the user must read."""
    with suppress(OSError):
        undo()


def _make_root(root: Path) -> bool:
    if root.is_dir():
        return False
    try:
        root.mkdir()
    except FileExistsError:
        return False
    except OSError as error:
        raise SlurmtrainError(f"{root}: {error.strerror}: nothing was submitted") from None
    return True


def _remove_root(root: Path, *, new: bool) -> None:
    if new:
        with suppress(OSError):
            root.rmdir()
