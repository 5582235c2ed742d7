"""How the run of a command begins: new, as a branch of another, or from a checkpoint of its own. Everything is checked, nothing done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from slurmtrain.cli.assemble import Draft
from slurmtrain.cli.chosen import Chosen, chosen, newest
from slurmtrain.cli.ckpt_names import run_at_step
from slurmtrain.cli.doors import Doors
from slurmtrain.cli.facts import locate
from slurmtrain.cli.options import Resume
from slurmtrain.cli.resume import changed, check_name
from slurmtrain.cli.script import refuse_for_script
from slurmtrain.config.changes import Change, check_changes, differences, plain
from slurmtrain.config.stored import read_job
from slurmtrain.data.counting import check_source, source_of
from slurmtrain.errors import ConfigError, SlurmtrainError, UserError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import steps_present
from slurmtrain.store.local import newest_step
from slurmtrain.store.origin import Origin, branch_of, read_origin

_OWN = frozenset({"run", "slurm", "environment", "python", "v"})
"""Sections in which a branch is its own master: no word about their changes."""


@dataclass(frozen=True)
class Start:
    """`back_to`: where a run goes on, and `behind`: steps whose checkpoints are set aside for that; `origin`: what a branch begins with;
    `note`: for the history.
    """

    resume: bool = False
    back_to: Resume = "newest"
    behind: tuple[int, ...] = ()
    origin: Origin | None = None
    note: str = ""

    @property
    def branch(self) -> str | None:
        """The checkpoint of another run, as --from takes it."""
        return None if self.origin is None else f"{self.origin.run}@{self.origin.step}"


def start_of(
    made: Draft, doors: Doors, *, resume: Resume | None, branch: str | None, root: Path | None, check_idle: Callable[[], None]
) -> Start:
    """`check_idle` is asked before anything is decided about a run that is there. Raises SlurmtrainError."""
    if branch is not None and resume is not None:
        raise UserError("--from begins a new run and --resume goes on with one: give one of them")
    check_name(made.run, resume=resume is not None)
    if branch is not None:
        refuse_for_script(made.job, "--from")
        return _branched(made, doors, branch, root)
    if resume is None:
        return Start()
    check_idle()
    with _one_line(made.run):
        return _resumed(made, resume) if made.job.entry is None else _resumed_script(made, resume)


def _resumed(made: Draft, resume: Resume) -> Start:
    run, origin = made.run, read_origin(made.run)
    here = None if resume == "none" else newest(run) if resume == "newest" else chosen(run, resume)
    if here is None and origin is not None:
        here = chosen(RunDir(origin.run), origin.step)
    step = None if here is None else here.step
    if resume == "newest" and (local := newest_step(run)) is not None:
        step = max(local, step or 0)
    found = changed(run, made.job, step, again=resume != "newest")
    _check_samples(here, made)
    _tell("changed since the run was last submitted", found)
    behind = [] if resume == "newest" else [step for step in steps_present(run.checkpoints) if resume == "none" or step > resume]
    words = "resume" if resume == "newest" else f"resume from {resume if resume == 'none' else f'step {resume}'}"
    return Start(resume=True, back_to=resume, behind=tuple(behind), note="; ".join([words, *map(str, found)]))


def _resumed_script(made: Draft, resume: Resume) -> Start:
    """A script goes on from what it finds."""
    if resume != "newest":
        refuse_for_script(made.job, f"--resume {resume}: move the checkpoints that it shall not find away, and say --resume alone")
    found = changed(made.run, made.job, None)
    _tell("changed since the run was last submitted", found)
    return Start(resume=True, note="; ".join(["resume", *map(str, found)]))


def _branched(made: Draft, doors: Doors, word: str, root: Path | None) -> Start:
    name, step = run_at_step(word)
    source = locate(name, root, doors)
    with _one_line(source):
        here = chosen(source, step)
        origin = branch_of(source, here.step)
    found = [one for one in differences(_job_of(here), plain(made.job)) if one.section not in _OWN]
    check_changes(found, durable_step=here.step)
    _check_samples(here, made)
    if made.job.training.steps <= here.step:
        problem = f"the branch begins at step {here.step}: use more than that"
        raise ConfigError(problem, key="training.steps", value=made.job.training.steps)
    _tell(f"otherwise than in {source.name} at step {here.step}", found)
    return Start(origin=origin, note="; ".join([f"branch of {origin}", *map(str, found)]))


def _tell(what: str, found: Sequence[Change]) -> None:
    """A person reads it before the job is submitted."""
    if found:
        click.echo(f"{what}: {', '.join(map(str, found))}", err=True)


def _job_of(here: Chosen) -> Mapping[str, Any]:
    """The job that made a checkpoint, as JSON values; that of its run where the checkpoint does not tell."""
    told = here.manifest.state.get("job")
    return told if isinstance(told, Mapping) else plain(read_job(here.run.job_json))


def _check_samples(here: Chosen | None, made: Draft) -> None:
    if here is not None:
        check_source(here.manifest.state, source_of(made.job), here.step)


@contextmanager
def _one_line(run: RunDir) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SlurmtrainError(f"{error.filename or run.checkpoints}: {error.strerror or error}") from None
