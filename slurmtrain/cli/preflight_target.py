"""What a preflight is for: a site, or a run or job file and what that needs; and what the nodes are asked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.cli.doors import Doors
from slurmtrain.config.expand import expand
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError, UserError
from slurmtrain.preflight.history import Level, history_path
from slurmtrain.preflight.request import Request
from slurmtrain.resilience.needs import with_needs
from slurmtrain.resilience.ranks import Setup


@dataclass(frozen=True)
class Target:
    """`root`: where runs live, None where that cannot be told (a node by itself); `setup`: of the run or job file; `there`: the run's
    folder exists; `python`: the interpreter of the nodes' tasks.
    """

    site: SiteConfig
    root: Path | None
    python: str
    setup: Setup | None = None
    there: bool = False

    @property
    def level(self) -> Level:
        """What the job asks for; quick where nobody does."""
        return "full" if self.setup is not None and self.setup.job.preflight == "full" else "quick"

    @property
    def run_name(self) -> str:
        return "" if self.setup is None else self.setup.run.name

    def gpus_per_node(self, environ: Mapping[str, str]) -> int:
        """GPUs of a node that are looked for: the run's, else those of the allocation, else all that the site has."""
        if self.setup is not None:
            return self.setup.plan.gpus_per_node
        said = environ.get("SLURM_GPUS_PER_NODE", "").rpartition(":")[2]
        return int(said) if said.isdigit() else self.site.node.gpus

    def history(self, environ: Mapping[str, str]) -> Path | None:
        """Raises ConfigError."""
        return history_path(self.site, self.root, environ)


def target_of(word: str | None, site_name: str | None, root: Path | None, doors: Doors, *, here: bool) -> Target:
    """`word`: RUN, or the path of a job file, or none. `here`: this node by itself, where Slurm is not asked. Raises UserError."""
    if word is None:
        return _of_site(site_name, root, doors, here=here)
    if word.endswith(".toml") and Path(word).is_file():
        return _of_job_file(Path(word), site_name, root, doors)
    from slurmtrain.cli.facts import locate
    from slurmtrain.resilience.composition import read_setup

    setup = read_setup(locate(word, root, doors))
    if site_name is not None and site_name != setup.site.name:
        raise UserError(f"run {setup.run.name} is of site {setup.site.name}: leave --site out")
    return Target(setup.site, setup.run.path.parent, setup.python, setup, there=True)


def _of_site(name: str | None, root: Path | None, doors: Doors, *, here: bool) -> Target:
    from slurmtrain.cli.runs import cluster_name, root_of_site
    from slurmtrain.config.sites import choose_site

    site = choose_site(name, doors.env, lambda: None if here else cluster_name(doors.slurm))
    said = site.python.interpreter
    python = sys.executable if said is None else str(expand(said, doors.env, where=f"site {site.name}", key="python.interpreter"))
    try:
        return Target(site, root_of_site(root, doors.env, site), python)
    except ConfigError:
        if not here:
            raise
        return Target(site, None, python)


def _of_job_file(path: Path, site_name: str | None, root: Path | None, doors: Doors) -> Target:
    from slurmtrain.cli.assemble import Wish, draft
    from slurmtrain.cli.runs import is_run
    from slurmtrain.launch.interpreter import choose_python

    made = draft(Wish(path, site=site_name, root=root), doors)
    setup = Setup(made.run, made.job, made.site, made.plan)
    return Target(made.site, made.run.path.parent, choose_python(made.job, made.site, doors.env), setup, there=is_run(made.run.path))


def request_of(
    target: Target,
    environ: Mapping[str, str],
    t: float,
    *,
    only: tuple[str, ...] = (),
    shared: tuple[Path, ...] = (),
    answers: str = "",
    nonce: str = "",
    nonce_file: str = "",
) -> Request:
    """What the nodes are asked. `shared`: folders that every node writes into, where there is no run whose folders these are."""
    setup = target.setup
    own = () if setup is None or not target.there else (setup.run.checkpoints, setup.run.events)
    request = Request(
        t=t,
        answers=answers,
        nonce=nonce,
        nonce_file=nonce_file,
        shared=tuple(str(folder) for folder in own or shared),
        site=target.site,
        code=str(setup.run.code) if setup is not None and target.there else "",
        python=target.python,
        gpus_per_node=target.gpus_per_node(environ),
        health=True,
        only=only,
    )
    return request if setup is None else with_needs(request, setup)
