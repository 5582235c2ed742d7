"""Publishing a run folder, and taking it back when its job was refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from slurmtrain.cli.assemble import Draft
from slurmtrain.cli.doors import Doors
from slurmtrain.cli.options import Resume
from slurmtrain.cli.start import Start
from slurmtrain.errors import SlurmtrainError
from slurmtrain.launch.prepare import RunContents, create_run, discard_run, renew_run
from slurmtrain.rundir import RunDir
from slurmtrain.store.aside import put_back, set_aside
from slurmtrain.store.listing import steps_present
from slurmtrain.store.local import forget_after
from slurmtrain.store.origin import Origin, borrowed, hold, let_go, read_origin

Undo = Callable[[], None]


def publish(made: Draft, contents: RunContents, doors: Doors, start: Start) -> Undo:
    """Make the run folder, or renew it; gives back what takes a new one away again, and puts checkpoints back. Raises SlurmtrainError."""
    undo = _renew(made, contents, doors, start) if start.resume else _create(made, contents, doors, start)
    for one in _borrowed(made) if not steps_present(made.run.checkpoints) else []:
        if note := hold(one, made.run):
            click.echo(f"warning: {note}", err=True)
    return undo


def _borrowed(made: Draft) -> list[Origin]:
    return borrowed(read_origin(made.run), made.job.model.weights) if made.job.entry is None else []


def take_back(undo: Undo) -> None:
    """Undo, as far as the disk lets us: the reason for it is what the user must read."""
    with suppress(OSError):
        undo()


def _renew(made: Draft, contents: RunContents, doors: Doors, start: Start) -> Undo:
    run = made.run
    moved: list[tuple[int, Path]] = []
    told = {path: _bytes_of(path) for path in (run.local_rules, run.local_json, *_interventions(run))}

    def undo() -> None:
        for step, folder in moved:
            put_back(run, step, folder)
        for path, data in told.items():
            if data is not None and data != _bytes_of(path):
                doors.disk.write(path, data)

    try:
        for step in start.behind:
            moved.append((step, _set_aside(run, step, start.note.partition(";")[0])))  # noqa: PERF401 what is done counts on a failure
        if start.back_to != "newest":
            _forget_after(run, start.back_to)
        if start.back_to == "none":
            _forget_interventions(run)
        renew_run(run, contents, doors.disk)
    except BaseException:
        take_back(undo)
        raise
    if moved:
        click.echo(f"set aside: {', '.join(folder.name for _, folder in moved)} in {run.checkpoints}", err=True)
    return undo


def _forget_after(run: RunDir, back_to: Resume) -> None:
    """What lies on the nodes' own disks is left behind by a line in the run folder."""
    try:
        forget_after(run, back_to if isinstance(back_to, int) else None)
    except OSError as error:
        raise SlurmtrainError(f"{run.local_rules}: {error.strerror or error}: nothing was submitted") from None


def _interventions(run: RunDir) -> tuple[Path, Path]:
    return run.numerics_json, run.examination_json


def _forget_interventions(run: RunDir) -> None:
    """What begins anew knows of no bad steps, and of no corruption."""
    for path in _interventions(run):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise SlurmtrainError(f"{path}: {error.strerror or error}: nothing was submitted") from None


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _set_aside(run: RunDir, step: int, why: str) -> Path:
    try:
        return set_aside(run, step, why)
    except OSError as error:
        raise SlurmtrainError(f"{run.checkpoint(step)}: cannot be set aside: {error.strerror or error}: nothing was submitted") from None


def _create(made: Draft, contents: RunContents, doors: Doors, start: Start) -> Undo:
    root = made.run.path.parent
    new_root = _make_root(root)
    try:
        create_run(made.run, replace(contents, origin=start.origin.to_json() if start.origin else None), doors.disk)
    except BaseException:
        _remove_root(root, new=new_root)
        raise

    def undo() -> None:
        for one in _borrowed(made):
            let_go(one, made.run)
        discard_run(made.run)
        _remove_root(root, new=new_root)

    return undo


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
