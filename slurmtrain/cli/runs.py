"""Which root, and which run: a name under the root, the path of a run folder, or a job id, wherever a command says RUN."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from slurmtrain.config.expand import expand
from slurmtrain.config.site import SiteConfig
from slurmtrain.config.sites import choose_site
from slurmtrain.errors import ConfigError, RunNotFoundError, SlurmError
from slurmtrain.rundir import RunDir
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.telemetry.history import read_acts

LOCAL_ROOT = Path("runs")
_JOB_ID = re.compile(r"\d+(_\d+)?")


def root_of_site(option: Path | None, env: Mapping[str, str], site: SiteConfig) -> Path:
    """Where runs live: --root, $SLURMTRAIN_ROOT, the site's [paths] root, `./runs` for a site without Slurm. Raises ConfigError."""
    said = option or env.get("SLURMTRAIN_ROOT")
    if said is None and site.paths.root is not None:
        said = expand(site.paths.root, env, where=f"site {site.name}", key="paths.root")
    if said is None and site.launcher == "mpiexec":
        said = LOCAL_ROOT
    if said is None:
        raise ConfigError("where do runs live? give --root, SLURMTRAIN_ROOT, or [paths] root of the site", where=f"site {site.name}")
    root = Path(os.path.abspath(said))  # noqa: PTH100 links stay
    if any(ch in str(root) for ch in "%\\\n\r"):
        problem = "Slurm and submitit read percent signs, backslashes and line ends in a path as their own: choose a folder without"
        raise ConfigError(problem, key="root", value=str(root))
    return root


def find_root(option: Path | None, env: Mapping[str, str], slurm: SlurmClient) -> Path:
    """The root for a command that only looks: as `root_of_site`, and `./runs` where no site can be told. Raises ConfigError."""
    if option or env.get("SLURMTRAIN_ROOT"):
        return Path(os.path.abspath(option or env["SLURMTRAIN_ROOT"]))  # noqa: PTH100
    try:
        return root_of_site(None, env, choose_site(None, env, lambda: cluster_name(slurm)))
    except ConfigError:
        if LOCAL_ROOT.is_dir() and not env.get("SLURMTRAIN_SITE"):
            return LOCAL_ROOT.absolute()
        raise


def cluster_name(slurm: SlurmClient) -> str | None:
    """Slurm's name of the cluster; None where no Slurm answers."""
    try:
        return slurm.config_value("ClusterName")
    except SlurmError:
        return None


def is_run(path: Path) -> bool:
    """Whether a folder is a run's."""
    return RunDir(path).job_json.is_file()


def all_runs(root: Path) -> list[RunDir]:
    """The runs under a root, by name; none where there is no such folder."""
    try:
        return [RunDir(path) for path in sorted(root.iterdir()) if not path.name.startswith(".") and is_run(path)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def find_run(word: str, root: Path, slurm: SlurmClient) -> RunDir:
    """The run that a word means. Raises RunNotFoundError with the names that there are."""
    by_name = root / word
    if "/" not in word and word not in {".", ".."} and is_run(by_name):
        return RunDir(by_name)
    path = Path(os.path.abspath(word))  # noqa: PTH100
    if is_run(path):
        return RunDir(path)
    if _JOB_ID.fullmatch(word):
        found = _by_job(word, root, slurm)
        if found:
            return found
        raise RunNotFoundError(f"no run under {root} belongs to job {word}: give its name, or --root")
    name, _, step = word.rpartition("@")
    if step.isdecimal() and (is_run(root / name) or is_run(Path(name))):
        raise RunNotFoundError(f"{word!r} is a checkpoint, and a run is asked for: leave @{step} out")
    names = [run.name for run in all_runs(root)]
    there = f"there are {', '.join(names[-8:])}" if names else "there are none"
    raise RunNotFoundError(f"no run {word!r} under {root}: {there}{' and more' if len(names) > 8 else ''}; or give --root")


def _by_job(job_id: str, root: Path, slurm: SlurmClient) -> RunDir | None:
    """By the job's comment, which holds the run folder, else by what the runs under the root remember."""
    try:
        info = slurm.job(job_id)
    except SlurmError:
        info = None
    if info and info.comment and is_run(Path(info.comment)):
        return RunDir(Path(info.comment))
    for run in all_runs(root):
        if any(_same_job(job_id, known) for known in jobs_of(run)):
            return run
    return None


def jobs_of(run: RunDir) -> list[str]:
    """Ids of the jobs of a run that its folder remembers, oldest first."""
    known = [act.job_id for act in read_acts(run) if act.job_id]
    with suppress(OSError, ValueError, KeyError, TypeError):
        known.append(str(json.loads(run.owner_json.read_bytes())["job_id"]))
    return list(dict.fromkeys(known))


def job_of(env: Mapping[str, str]) -> str:
    """Id of the job around this process, A_a for a member of an array; empty where there is none."""
    array, task = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else env.get("SLURM_JOB_ID", "")


def _same_job(asked: str, known: str) -> bool:
    """An array member belongs to its array, and the array's id to all of its members."""
    return asked == known or asked.partition("_")[0] == known or known.partition("_")[0] == asked
