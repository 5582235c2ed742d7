"""job.json, site.json and plan.json of a run folder: resolved models, written once, read by every later stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from slurmtrain.atomic import Disk, to_json
from slurmtrain.config.base import FORMAT_VERSION, Frozen
from slurmtrain.config.draft import Draft
from slurmtrain.config.job import JobConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError
from slurmtrain.rundir import RunDir

M = TypeVar("M", bound=Frozen)


def write_models(run: RunDir, job: JobConfig, site: SiteConfig, plan: Plan, disk: Disk) -> None:
    """Publish the three files. Raises OSError."""
    for path, model in ((run.job_json, job), (run.site_json, site), (run.plan_json, plan)):
        disk.write(path, to_json(model.model_dump(mode="json", exclude_none=True)))


def read_job(path: Path) -> JobConfig:
    """The resolved job of a run. Raises ConfigError."""
    return _read(path, JobConfig)


def read_site(path: Path) -> SiteConfig:
    """The site of a run. Raises ConfigError."""
    return _read(path, SiteConfig)


def read_plan(path: Path) -> Plan:
    """The layout of a run. Raises ConfigError."""
    return _read(path, Plan)


def plan_of_attempt(run: RunDir, number: int) -> Plan:
    """The layout of an attempt: its own where it is another than the run's (elastic), else the run's. Raises ConfigError."""
    own = run.attempt(number).plan_json
    return read_plan(own if own.exists() else run.plan_json)


def _read(path: Path, model: type[M]) -> M:
    where = str(path)
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError("no such file: is this the folder of a run?", where=where) from None
    except (ValueError, RecursionError):
        raise ConfigError("is damaged: not JSON", where=where) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=where) from None
    if not isinstance(values, dict):
        raise ConfigError("is damaged: not a JSON object", where=where)
    version = values.get("v")
    if isinstance(version, int) and version > FORMAT_VERSION:
        problem = f"was written by a newer slurmtrain; this one reads formats up to {FORMAT_VERSION}: use that release"
        raise ConfigError(problem, where=where, key="v", value=version)
    return Draft(values, where).build(model)
