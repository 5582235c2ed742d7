"""Is the script of an [entry] where the ranks will look for it? And what may be asked of a run that is a script."""

from __future__ import annotations

import os
from pathlib import Path

from slurmtrain.config.job import JobConfig
from slurmtrain.config.stored import read_job
from slurmtrain.errors import ConfigError, UserError
from slurmtrain.launch.snapshot import Snapshot
from slurmtrain.rundir import RunDir
from slurmtrain.store.foreign import newest_foreign

_SUFFIXES = (".py", ".sh")
_SHOWN = 6


def check_script(job: JobConfig, snapshot: Snapshot, *, where: str) -> None:
    """Raise ConfigError for a script that is not among the files which are copied into the run."""
    for index, word in enumerate(job.entry.command if job.entry is not None else ()):
        if not word.endswith(_SUFFIXES) or word.startswith(("-", "{")) or "=" in word:
            continue
        if Path(word).is_absolute() or _is_copied(word, snapshot):
            return
        names = [name for _, name in snapshot.files if Path(name).name == Path(word).name] or [name for _, name in snapshot.files]
        there = f"there are {', '.join(sorted(names)[:_SHOWN])}" if names else "none is"
        problem = f"is not among the files that are copied into the run ({there}): name it from their top, or add it to run.include"
        raise ConfigError(problem, where=where, key=f"entry.command[{index}]", value=word)


def _is_copied(word: str, snapshot: Snapshot) -> bool:
    name = os.path.normpath(word)
    if snapshot.link is not None:
        return (snapshot.link / name).exists()
    return any(copied == name for _, copied in snapshot.files)


def refuse_for_script(job: JobConfig | None, what: str) -> None:
    """Raise UserError where a run is a script: it alone knows its checkpoints."""
    if job is not None and job.entry is not None:
        raise UserError(f"{what}: run {job.run.name} is a script of its own ([entry]), which saves and loads by itself")


def script_checkpoint(run: RunDir) -> str:
    """In words, the newest checkpoint of a run that is a script; empty for another run, or where there is none."""
    try:
        job = read_job(run.job_json)
        found = newest_foreign(run, job.entry) if job.entry is not None else None
    except (ConfigError, OSError):
        return ""
    return "" if found is None else f"run {run.name} is a script of its own; its newest checkpoint: step {found.step}, {found.path}"
