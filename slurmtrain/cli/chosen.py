"""Which checkpoint a command means: of a step, or the newest; one that is there, and whose files have the right sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slurmtrain.config.refusal import either
from slurmtrain.errors import CheckpointError, RunNotFoundError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import folders_present
from slurmtrain.store.manifest import Manifest
from slurmtrain.store.verify import cheap_problems, read_manifest

_SHOWN = 12


@dataclass(frozen=True)
class Chosen:
    """A checkpoint that can be gone on from, as far as its index and the sizes of its files tell."""

    run: RunDir
    step: int
    folder: Path
    manifest: Manifest


def newest(run: RunDir) -> Chosen | None:
    """None where the run has none whose index holds and whose sizes are right. Raises OSError."""
    for step, folder in folders_present(run.checkpoints):
        try:
            manifest = read_manifest(folder)
        except CheckpointError:
            continue
        if not cheap_problems(folder, manifest):
            return Chosen(run, step, folder, manifest)
    return None


def chosen(run: RunDir, step: int | None) -> Chosen:
    """That of a step; None: the newest. Raises RunNotFoundError and CheckpointError, which list those that there are."""
    if step is None:
        if (found := newest(run)) is None:
            raise RunNotFoundError(f"run {run.name!r} has no checkpoint that could be gone on from{_there(run)}")
        return found
    folders = dict(folders_present(run.checkpoints))
    if step not in folders:
        raise RunNotFoundError(f"run {run.name!r} has no checkpoint of step {step}{_there(run)}")
    from slurmtrain.checkpoint.damage import with_tensors

    try:
        manifest = read_manifest(folders[step])
        problems = with_tensors(manifest, cheap_problems(folders[step], manifest))
    except CheckpointError as error:
        problems = [str(error)]
    if problems:
        raise CheckpointError(f"{folders[step]} does not verify ({problems[0]}){_there(run, without=step)}")
    return Chosen(run, step, folders[step], manifest)


def _there(run: RunDir, without: int | None = None) -> str:
    steps = sorted(step for step, _ in folders_present(run.checkpoints) if step != without)
    if not steps:
        return "; there is none" if without is None else "; there is no other"
    more = f"{len(steps) - _SHOWN} older ones and " if len(steps) > _SHOWN else ""
    return f"; there are those of {more}{either(list(steps[-_SHOWN:]))}".replace(" or ", " and ")
