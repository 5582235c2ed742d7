"""The interpreter of a job: which one, whether it can run slurmtrain, and the versions that it brings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from slurmtrain import __version__
from slurmtrain.config.expand import expand
from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError, one_line
from slurmtrain.launch.request import Versions
from slurmtrain.shell import RC_NOT_FOUND, RC_TIMED_OUT, Shell

ASK_TIMEOUT_S = 60.0
_ASK = (
    "import json, platform; from importlib import metadata; import slurmtrain, submitit; "
    "print(json.dumps([platform.python_version(), slurmtrain.__version__, "
    "{d.metadata['Name']: d.version for d in metadata.distributions() if d.metadata['Name']}]))"
)


def choose_python(job: JobConfig, site: SiteConfig, env: Mapping[str, str]) -> str:
    """The job's interpreter, else the site's, else the one that runs now; a bare name is looked up in the job's PATH."""
    said = job.python or site.python.interpreter
    if said is None:
        return sys.executable
    path = expand(said, env, where=f"site {site.name}", key="python.interpreter")
    return os.path.abspath(path) if "/" in str(path) else str(path)  # noqa: PTH100 a venv's python is a link, kept as it is


def ask_versions(python: str, job: JobConfig, site: SiteConfig, shell: Shell) -> Versions:
    """Versions that the interpreter brings.

    Raises ConfigError when it is not there, or has no slurmtrain. A bare name that a module brings into PATH is not asked here:
    the check of each node does that in the job.
    """
    if "/" not in python and site.environment.modules:
        return Versions()
    key, where = ("python", f"job {job.run.name}") if job.python else ("python.interpreter", f"site {site.name}")
    done = shell.run([python, "-c", _ASK], timeout_s=ASK_TIMEOUT_S, cwd=Path("/"))
    if done.rc == RC_NOT_FOUND:
        raise ConfigError("no such interpreter: give the path of one that has slurmtrain", where=where, key=key, value=python)
    if done.rc == RC_TIMED_OUT:
        raise ConfigError(f"this interpreter did not answer in {ASK_TIMEOUT_S:.0f} s", where=where, key=key, value=python)
    answer = _answer(done.out) if done.ok else None
    if answer is None:
        said = one_line((done.err.strip().splitlines() or [f"exit code {done.rc}"])[-1], 160)
        raise ConfigError(f"this interpreter cannot run slurmtrain: {said}", where=where, key=key, value=python)
    if answer.slurmtrain != __version__:
        problem = f"it has slurmtrain {answer.slurmtrain}, and this is {__version__}: use one of them for both"
        raise ConfigError(problem, where=where, key=key, value=python)
    return answer


def _answer(text: str) -> Versions | None:
    try:
        python, ours, packages = json.loads(text.splitlines()[-1])
        return Versions(python=python, slurmtrain=ours, packages=dict(sorted(packages.items(), key=lambda item: item[0].lower())))
    except (ValueError, IndexError):
        return None
