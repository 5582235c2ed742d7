"""The directives of a job, and how a value is written so that sbatch reads it back unchanged.

sbatch splits `#SBATCH` lines into words itself: quotes group, and a backslash escapes the next character also inside quotes.

>>> directive("--comment=/runs/it's $HOME"), directive("--nodes=2")
('--comment="/runs/it\\'s $HOME"', '--nodes=2')
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmtrain.config.job import JobConfig
from slurmtrain.config.keeping import outlives_nodes
from slurmtrain.config.plan import Plan
from slurmtrain.config.sbatch_options import extra_fault
from slurmtrain.config.site import EARLY_S, SiteConfig
from slurmtrain.errors import ConfigError
from slurmtrain.fabric.resize import fewest
from slurmtrain.rundir import RunDir
from slurmtrain.units import format_duration, parse_duration

_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=-]+")
_OPTION = re.compile(r"--[a-z-]+")
SHORTEST_START_S = 30
"""From the start of a job to its first saved step, at the very least."""


def directives(job: JobConfig, site: SiteConfig, plan: Plan, run: RunDir) -> tuple[str, ...]:
    """Words for sbatch, in an order where a later one wins. Raises ConfigError for a value of several lines."""
    words = [*_shape(job, site, plan), *_where(job, site), *_life(job, site, run), *site.slurm.extra, *job.slurm.extra]
    for word in words:
        if any(ch in word for ch in "\0\n\r"):
            raise ConfigError("a directive of sbatch must be one line", key=word.partition("=")[0], value=word)
    return tuple(words)


def _shape(job: JobConfig, site: SiteConfig, plan: Plan) -> Iterator[str]:
    gpus = plan.gpus_per_node
    whole = gpus == site.node.gpus
    yield f"--job-name={job.run.name}"
    most, least = plan.nodes + plan.spares, fewest(plan, job, site)
    yield f"--nodes={most}" if least == plan.nodes else f"--nodes={least}-{most}"
    yield f"--ntasks-per-node={gpus}"
    yield f"--cpus-per-task={site.node.cpus_per_gpu}"
    option = site.slurm.gpus_option
    if option:
        typed = f"{site.slurm.gpu_type}:{gpus}" if site.slurm.gpu_type else str(gpus)
        yield f"{option}:{typed}" if "=" in option else f"{option}={typed}"
    if whole and site.slurm.exclusive:
        yield "--exclusive"
    if whole:
        yield "--mem=0"
    elif site.node.memory_bytes:
        yield f"--mem={site.node.memory_bytes * gpus // site.node.gpus // 2**20}M"


def _where(job: JobConfig, site: SiteConfig) -> Iterator[str]:
    wanted, default = job.slurm, site.slurm
    yield f"--time={format_duration(time_limit_s(job, site))}"
    for option, value in (
        ("--partition", wanted.partition or default.partition),
        ("--account", wanted.account or default.account),
        ("--qos", wanted.qos or default.qos),
        ("--reservation", wanted.reservation),
        ("--constraint", wanted.constraint),
        ("--nodelist", wanted.nodelist),
        ("--exclude", wanted.exclude),
        ("--dependency", wanted.dependency),
        ("--array", array_of(job)),
    ):
        if value:
            yield f"{option}={value}"


def _life(job: JobConfig, site: SiteConfig, run: RunDir) -> Iterator[str]:
    yield "--no-requeue" if job.slurm.continuation == "chain" else "--requeue"
    if outlives_nodes(job, site):
        yield "--no-kill"
    yield "--open-mode=append"
    if site.slurm.stop_notice_s:
        yield f"--signal=B:USR2@{site.slurm.stop_notice_s}"
    yield "--propagate=NONE"
    yield f"--comment={run.path}"


def array_of(job: JobConfig) -> str | None:
    """The array of a run's own jobs: its segments, or the links of its chain, one at a time."""
    return f"1-{job.slurm.links}%1" if job.slurm.continuation == "chain" else job.slurm.array


def check_continuation(job: JobConfig, *, where: str) -> None:
    """Refuse two ways at once. Raises ConfigError."""
    if job.slurm.continuation == "chain" and job.slurm.array is not None:
        made = f"an array of slurm.links = {job.slurm.links} jobs itself"
        problem = f'slurm.continuation = "chain" makes {made}: leave slurm.array out, or slurm.continuation'
        raise ConfigError(problem, where=where, key="slurm.array", value=job.slurm.array)


def time_limit_s(job: JobConfig, site: SiteConfig) -> int:
    """The time limit of the job in seconds; 0: none."""
    return parse_duration(job.slurm.time or site.slurm.time)


def check_time_limit(job: JobConfig, site: SiteConfig) -> None:
    """Refuse a limit in which no step can be saved before the notice of the end comes. Raises ConfigError."""
    limit, notice = time_limit_s(job, site), site.slurm.stop_notice_s
    least = SHORTEST_START_S + (notice + EARLY_S if notice else 0)
    if 0 < limit < least:
        why = f"a start takes {SHORTEST_START_S} s or more, and the notice to save comes up to {notice + EARLY_S} s before the end"
        problem = f"too short: {why}: use {format_duration(-(-least // 60) * 60)} or more, or lower slurm.stop_notice_s of the site"
        raise ConfigError(problem, key="slurm.time", value=job.slurm.time or site.slurm.time)


def check_passthrough(words: tuple[str, ...]) -> None:
    """Refuse words after `--` that slurmtrain says itself, or that are no option. Raises ConfigError."""
    takes_value = False
    for word in words:
        if word.startswith("-"):
            fault = extra_fault(word)
            if fault:
                raise ConfigError(f"{word!r}: {fault}", where="options after --")
        elif not takes_value:
            raise ConfigError(f"{word!r} is not an option of sbatch", where="options after --")
        elif any(ch in word for ch in "\0\n\r"):
            raise ConfigError(f"{word!r}: must be one line", where="options after --")
        takes_value = word.startswith("-") and "=" not in word


def directive(word: str) -> str:
    """One word as sbatch reads it back from a `#SBATCH` line."""
    if _PLAIN.fullmatch(word):
        return word
    option, equals, value = word.partition("=")
    return f"{option}={_quoted(value)}" if equals and _OPTION.fullmatch(option) else _quoted(word)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
