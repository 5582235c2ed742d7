"""What sbatch is told, as values: a pure function of the job, the site, the plan, the run folder and who submits.

>>> array_members("2-4%1"), array_members(None)
((2, 3, 4), ())
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from typing import Protocol

from pydantic import Field

from slurmtrain.config.base import FORMAT_VERSION, Frozen
from slurmtrain.config.job import JobConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.launch.directives import array_of, directives
from slurmtrain.rundir import RunDir

_CHOSEN = frozenset({"nodes", "gpus-per-node", "gres", "time", "array", "partition", "account", "qos"}) | frozenset(
    {"nodelist", "exclude", "constraint", "dependency", "reservation"}
)
"""Options of sbatch that a person chooses, and that Slurm may refuse."""


class Submitter(Frozen):
    """Who submitted, from where, with which words. `t`: seconds since the epoch."""

    user: str
    host: str
    cwd: str
    argv: tuple[str, ...]
    t: float


class CodeRecord(Frozen):
    """Where the code of a run comes from. `dirty`: files differ from the commit; `files`, `bytes`: of the copy."""

    source: str = ""
    commit: str | None = None
    dirty: bool = False
    live: bool = False
    included: tuple[str, ...] = ()
    files: int = 0
    bytes: int = 0


class Versions(Frozen):
    """Of the interpreter that runs the job."""

    python: str = ""
    slurmtrain: str = ""
    packages: Mapping[str, str] = Field(default_factory=dict)


class LaunchRequest(Frozen):
    """Everything that the batch script and sbatch's command line are made of.

    `directives`: words such as "--nodes=3", a later one wins over an earlier; `passthrough`: words given after `--`, last of all;
    `sbatch_options`: given on sbatch's own command line; `members`: task ids of the segments of an array, or (`chain`) of a chain's links;
    `prepare`: the command that makes the run folder where there is none.
    """

    v: int = FORMAT_VERSION
    run: str
    name: str
    template: str
    python: str
    directives: tuple[str, ...]
    passthrough: tuple[str, ...] = ()
    sbatch_options: tuple[str, ...] = ()
    members: tuple[int, ...] = ()
    chain: bool = False
    modules: tuple[str, ...] = ()
    exports: Mapping[str, str] = Field(default_factory=dict)
    ulimits: Mapping[str, str] = Field(default_factory=dict)
    before: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()
    submitter: Submitter | None = None
    code: CodeRecord = Field(default_factory=CodeRecord)
    versions: Versions = Field(default_factory=Versions)


class Facts(Protocol):
    """What a request needs to know that no file says."""

    @property
    def python(self) -> str: ...

    @property
    def passthrough(self) -> tuple[str, ...]: ...

    @property
    def prepare(self) -> tuple[str, ...]: ...

    @property
    def submitter(self) -> Submitter: ...

    @property
    def code(self) -> CodeRecord: ...

    @property
    def versions(self) -> Versions: ...


def build_request(job: JobConfig, site: SiteConfig, plan: Plan, run: RunDir, facts: Facts) -> LaunchRequest:
    """Raises ConfigError for a value that no directive can carry."""
    members = array_members(array_of(job))
    return LaunchRequest(
        run=str(run.path),
        name=job.run.name,
        template=job.slurm.template or site.slurm.template,
        python=facts.python,
        directives=directives(job, site, plan, run),
        passthrough=facts.passthrough,
        sbatch_options=(f"--output={run.slurm_out('%A_%a' if members else '%j')}",),
        members=members,
        chain=job.slurm.continuation == "chain",
        modules=site.environment.modules,
        exports={**site.environment.set, **site.fabric.environment, **job.environment},
        ulimits=site.environment.ulimits,
        before=site.environment.before,
        prepare=facts.prepare,
        submitter=facts.submitter,
        code=facts.code,
        versions=facts.versions,
    )


def asked_for(request: LaunchRequest) -> list[str]:
    """What a person chose of a request, for a refusal that does not say which of it was wrong."""
    chosen = [word for word in request.directives if word.partition("=")[0].removeprefix("--") in _CHOSEN]
    return [shlex.quote(word) for word in (*chosen, *request.passthrough)]


def array_members(array: str | None) -> tuple[int, ...]:
    """Task ids of "first-last%1"; none for a job that is no array."""
    if array is None:
        return ()
    first, last = (int(n) for n in array.partition("%")[0].split("-"))
    return tuple(range(first, last + 1))


def digest(*parts: Frozen) -> str:
    """A short word for the content of some models: two are equal when their words are."""
    text = "\n".join(part.model_dump_json() for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
