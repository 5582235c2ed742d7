"""Run folders, made whole or not at all: everything is built aside, then one rename publishes it; and made ready for another job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.atomic import Disk, to_json
from slurmtrain.config.job import JobConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.config.stored import write_models
from slurmtrain.errors import RunExistsError, SlurmtrainError
from slurmtrain.launch.request import LaunchRequest
from slurmtrain.launch.snapshot import Snapshot, copy_snapshot
from slurmtrain.rundir import RunDir


@dataclass(frozen=True)
class RunContents:
    """All that a run folder holds before its first job.

    `job_toml`: the file as given; `script`: the rendered batch script; `origin`: of a branch, the bytes of origin.json.
    """

    job_toml: bytes
    job: JobConfig
    site: SiteConfig
    plan: Plan
    request: LaunchRequest
    script: str
    snapshot: Snapshot
    origin: bytes | None = None


def create_run(run: RunDir, contents: RunContents, disk: Disk) -> None:
    """Make the folder of a new run. Raises RunExistsError when the name is taken meanwhile, SlurmtrainError when the disk refuses."""
    aside = RunDir(run.aside("", os.getpid()))
    with _one_line_faults(run.path):
        try:
            aside.create()
            aside.code.rmdir()
            copy_snapshot(contents.snapshot, aside.code)
            _write(aside, contents, disk)
            if contents.origin is not None:
                disk.write(aside.origin_json, contents.origin)
            disk.publish_dir(aside.path, run.path)
        except FileExistsError:
            raise RunExistsError(f"{run.path} exists already") from None
        finally:
            remove_tree(aside.path)


def renew_run(run: RunDir, contents: RunContents, disk: Disk) -> None:
    """Make an existing run ready for another job: code, configuration and script anew, STOP and FINISHED gone. Raises SlurmtrainError."""
    fresh, old = run.aside("code", os.getpid()), run.aside("code-old", os.getpid())
    with _one_line_faults(run.path):
        try:
            copy_snapshot(contents.snapshot, fresh)
            _write(run, contents, disk)
            if run.code.exists() or run.code.is_symlink():
                run.code.rename(old)
            fresh.rename(run.code)
            run.stop.unlink(missing_ok=True)
            run.finished.unlink(missing_ok=True)
        finally:
            remove_tree(fresh)
            remove_tree(old)


def discard_run(run: RunDir) -> None:
    """Take a new run away whose job was refused: first its name, by one rename, then the rest."""
    aside = run.aside("", os.getpid())
    run.path.rename(aside)
    remove_tree(aside)


def remove_tree(path: Path) -> None:
    """Remove a folder or a link, as far as it goes; nothing happens when it is not there."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _write(run: RunDir, contents: RunContents, disk: Disk) -> None:
    disk.write(run.job_toml, contents.job_toml)
    write_models(run, contents.job, contents.site, contents.plan, disk)
    disk.write(run.request_json, to_json(contents.request.model_dump(mode="json")))
    disk.write(run.script, contents.script.encode())


@contextmanager
def _one_line_faults(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = error.filename or path
        raise SlurmtrainError(f"{what}: {error.strerror or error}: nothing was submitted") from None
