"""From a job file and a command line to a run that can be made: everything is checked and worked out here, nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from pathlib import Path

from slurmtrain.cli.doors import Doors
from slurmtrain.cli.first_values import with_checked_weights
from slurmtrain.cli.options import KEYS
from slurmtrain.cli.runs import cluster_name, root_of_site
from slurmtrain.cli.script import check_script
from slurmtrain.config.checks import check_job
from slurmtrain.config.expand import expand
from slurmtrain.config.job import JobConfig
from slurmtrain.config.load import load_job
from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig, SiteReliability
from slurmtrain.config.sites import choose_site, find_file
from slurmtrain.data.summary import check_data
from slurmtrain.errors import TemplateError, one_line
from slurmtrain.fabric.plan import build_plan
from slurmtrain.fabric.resize import check_elastic
from slurmtrain.launch.directives import check_continuation, check_passthrough
from slurmtrain.launch.interpreter import ask_versions, choose_python
from slurmtrain.launch.prepare import RunContents
from slurmtrain.launch.render import Templates, render
from slurmtrain.launch.request import CodeRecord, LaunchRequest, Submitter, Versions, build_request, digest
from slurmtrain.launch.root import check_root
from slurmtrain.launch.snapshot import plan_snapshot
from slurmtrain.models.patterns import check_patterns
from slurmtrain.planner.measured import with_measured_rate
from slurmtrain.planner.spares import with_spares
from slurmtrain.resilience.budget import check_budgets
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.history import whoami


@dataclass(frozen=True)
class Wish:
    """What a command line says.

    `values`: options by name, as in `KEYS`; `passthrough`: words after `--`; `argv`: for the record; `branch`: RUN@STEP of --from.
    """

    job_file: Path
    values: Mapping[str, object] = field(default_factory=dict)
    sets: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    live: bool = False
    site: str | None = None
    root: Path | None = None
    passthrough: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    branch: str | None = None

    def options(self) -> dict[str, object]:
        """By the keys of the job file."""
        said: dict[str, object] = {KEYS[name]: value for name, value in self.values.items()}
        said["run.include"] = [os.path.abspath(path) for path in self.include] or None  # noqa: PTH100 links stay
        said["run.live"] = True if self.live else None
        return said


@dataclass(frozen=True)
class Draft:
    """A job on a site, and where it would live."""

    job: JobConfig
    site: SiteConfig
    plan: Plan
    run: RunDir
    notes: tuple[str, ...] = ()
    """What was worked out of what the job leaves open."""
    spares_chosen: bool = False


@dataclass(frozen=True)
class Facts:
    """What a request needs to know that no file says."""

    python: str
    passthrough: tuple[str, ...]
    prepare: tuple[str, ...]
    submitter: Submitter
    code: CodeRecord
    versions: Versions


def draft(wish: Wish, doors: Doors) -> Draft:
    """Read and check job and site, and lay the world out. Raises UserError."""
    check_passthrough(wish.passthrough)
    job = load_job(wish.job_file, sets=wish.sets, options=wish.options(), env=doors.env)
    site = choose_site(wish.site, doors.env, lambda: cluster_name(doors.slurm))
    site, measured = with_measured_rate(site, doors.clock.time())
    check_job(job, site, where=str(wish.job_file))
    check_continuation(job, where=str(wish.job_file))
    check_budgets(job.recovery, where=str(wish.job_file))
    job, why = with_spares(job, site)
    plan = build_plan(job, site)
    check_elastic(plan, job, site)
    if job.entry is None:
        check_patterns(job, where=str(wish.job_file))
        check_data(job, where=str(wish.job_file))
        job = with_checked_weights(job, where=str(wish.job_file))
    root = root_of_site(wish.root, doors.env, site)
    check_root(root)
    planned = measured if why or job.checkpoint.interval == "auto" else ""
    return Draft(job, site, plan, RunDir(root / job.run.name), tuple(filter(None, (why, planned))), bool(why))


def assemble(wish: Wish, made: Draft, doors: Doors) -> RunContents:
    """All that the run folder will hold. Raises UserError for interpreter, code and template."""
    python = choose_python(made.job, made.site, doors.env)
    versions = ask_versions(python, made.job, made.site, doors.shell)
    include = [_beside(wish.job_file, path, doors.env) for path in made.job.run.include]
    snapshot = plan_snapshot(
        Path(os.path.abspath(wish.job_file)),  # noqa: PTH100
        include=include,
        live=made.job.run.live,
        shell=doors.shell,
        env=doors.env,
    )
    check_script(made.job, snapshot, where=str(wish.job_file))
    facts = Facts(
        python, wish.passthrough, prepare_words(wish, made, python, doors.env), _submitter(wish, doors), snapshot.record, versions
    )
    request = build_request(made.job, made.site, made.plan, made.run, facts)
    script = script_of(request, doors)(())
    return RunContents(wish.job_file.read_bytes(), made.job, made.site, made.plan, request, script, snapshot)


def script_of(request: LaunchRequest, doors: Doors) -> Callable[[Sequence[str]], str]:
    """The function that renders the batch script, checked by bash too. The function raises TemplateError."""
    templates = Templates(partial(_template, env=doors.env), Path(str(files("slurmtrain.sbatch_templates"))))

    def made(runs: Sequence[str]) -> str:
        text = render(request, templates, runs=runs)
        done = doors.shell.run(["bash", "-n"], timeout_s=30, stdin=text)
        if not done.ok:
            said = one_line(done.err.strip().splitlines()[0] if done.err.strip() else "no answer", 160)
            raise TemplateError(f"{_template(request.template, doors.env)}: bash cannot read the script: {said}")
        return text

    return made


def prepare_words(wish: Wish, made: Draft, python: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """The command by which a script that was given to sbatch by hand makes its run folder, if job and site are still the same."""
    words = [python, "-P", "-m", "slurmtrain.cli.main", "submit", os.path.abspath(wish.job_file), "--root", str(made.run.path.parent)]  # noqa: PTH100
    site = wish.site or env.get("SLURMTRAIN_SITE")
    worked_out = {"spares": made.job.slurm.spares} if made.spares_chosen else {}
    for name, value in {"site": site, **wish.values, **worked_out}.items():
        if value is not None:
            path = name in {"site", "template"} and str(value).endswith((".toml", ".j2"))
            words.append(f"--{name.replace('_', '-')}={os.path.abspath(str(value)) if path else value}")  # noqa: PTH100
    words += [f"--set={text}" for text in wish.sets]
    words += [f"--include={os.path.abspath(path)}" for path in wish.include]  # noqa: PTH100
    words += ["--live"] if wish.live else []
    words += [f"--from={wish.branch}"] if wish.branch is not None else []
    words += ["--prepare", promised(made)]
    return (*words, "--", *wish.passthrough) if wish.passthrough else tuple(words)


def promised(made: Draft) -> str:
    """A word for all that a script promises, job, site and layout; what the site's fault log measures meanwhile changes nothing in it."""
    site = made.site.model_copy(update={"reliability": SiteReliability()})
    return digest(made.job, site, made.plan)


def with_defaults(wish: Wish, **values: object) -> Wish:
    """The wish, with values for options that were not given."""
    given = {name: value for name, value in wish.values.items() if value is not None}
    return replace(wish, values={**values, **given})


def _template(name: str, env: Mapping[str, str]) -> Path:
    return find_file("template", name, env)


def _beside(job_file: Path, path: str, env: Mapping[str, str]) -> Path:
    return Path(os.path.abspath(job_file.parent / expand(path, env, where=str(job_file), key="run.include")))  # noqa: PTH100


def _submitter(wish: Wish, doors: Doors) -> Submitter:
    user, _, host = whoami().partition("@")
    return Submitter(user=user, host=host, cwd=str(Path.cwd()), argv=wish.argv, t=doors.clock.time())
