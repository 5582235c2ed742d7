"""RUN@STEP, or the path of a folder: which checkpoint a person means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.cli.doors import Doors
from slurmtrain.errors import UserError
from slurmtrain.rundir import RunDir, aside_step, checkpoint_step

_STEP = re.compile(r"[0-9]{1,18}")
_MOST_SHOWN = 8


@dataclass(frozen=True)
class Named:
    """A checkpoint that is there; `run` None: a folder that lies in no run. `step`: None where only its manifest can tell."""

    folder: Path
    run: RunDir | None
    step: int | None

    def __str__(self) -> str:
        return f"{self.run.name}@{self.step}" if self.run is not None and self.step is not None else str(self.folder)

    @property
    def file_name(self) -> str:
        """As a part of a file's name."""
        return f"{self.run.name}-{self.folder.name}" if self.run is not None else self.folder.name


def run_at_step(text: str) -> tuple[str, int | None]:
    """RUN and the step behind its @, None where none is said; an @ in a folder's name further up the path is part of it.

    Raises UserError for an @ without a run before it or a number behind it.

    >>> run_at_step("llama@300"), run_at_step("/runs/llama"), run_at_step("/me@site/llama@7"), run_at_step("/me@site/llama")
    (('llama', 300), ('/runs/llama', None), ('/me@site/llama', 7), ('/me@site/llama', None))
    """
    run, at, step = text.rpartition("@")
    if at and "/" not in step:
        if not run or not _STEP.fullmatch(step):
            raise UserError(f"{text!r} is no checkpoint: write RUN for the newest, or RUN@STEP with the number of a step")
        return run, int(step)
    if not text:
        raise UserError("an empty name is no checkpoint: write RUN for the newest, or RUN@STEP with the number of a step")
    return text, None


def checkpoint_named(text: str, root: Path | None, doors: Doors) -> Named:
    """The checkpoint of RUN@STEP, the newest of RUN, or the one that a path is. Whether it is whole is not looked at.

    Raises UserError (RunNotFoundError among them), naming the steps that are there, ConfigError.
    """
    from slurmtrain.cli.facts import locate

    if (folder := folder_named(text)) is not None:
        return folder
    word, step = run_at_step(text)
    run = locate(word, root, doors)
    steps = steps_of(run)
    if step is None:
        return Named(run.checkpoint(steps[-1]), run, steps[-1])
    if step not in steps:
        raise UserError(f"run {run.name} has no checkpoint of step {step}: {_there(steps)}{_aside_of(run, step)}")
    return Named(run.checkpoint(step), run, step)


def folder_named(text: str) -> Named | None:
    """The checkpoint that a path is: a folder with a manifest, or of a checkpoint's name; None for anything else."""
    from slurmtrain.cli.runs import is_run
    from slurmtrain.store.manifest import MANIFEST_NAME

    try:
        path = Path(text).resolve()
        by_name = checkpoint_step(path.name)
        if not path.is_dir() or not ((path / MANIFEST_NAME).exists() or by_name is not None or aside_step(path.name) is not None):
            return None
        run = RunDir(path.parent.parent)
        return Named(path, run if path.parent == run.checkpoints and is_run(run.path) else None, by_name)
    except OSError as error:
        raise UserError(f"{text}: {error.strerror or error}") from error


def steps_of(run: RunDir) -> Sequence[int]:
    """Steps of a run's checkpoints, ascending, at least one. Raises UserError for none, and a folder that cannot be read."""
    from slurmtrain.store.listing import steps_present

    try:
        steps = steps_present(run.checkpoints)
    except OSError as error:
        raise UserError(f"{run.checkpoints}: {error.strerror or error}") from error
    if not steps:
        raise UserError(f"run {run.name} has no checkpoint yet")
    return steps


def _there(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[-_MOST_SHOWN:]))
    return f"there are {shown}{f' and {len(steps) - _MOST_SHOWN} older ones' if len(steps) > _MOST_SHOWN else ''}"


def _aside_of(run: RunDir, step: int) -> str:
    """What was set aside of a step, in words."""
    names = sorted(path.name for path in run.checkpoints.iterdir() if aside_step(path.name) == step)
    return f"; of step {step} {run.checkpoints / names[-1]} was set aside" if names else ""
