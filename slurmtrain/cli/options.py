"""Options that several commands share, with sbatch's own names where sbatch has one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import click

from slurmtrain.cli.paths import UserPath

F = TypeVar("F", bound=Callable[..., Any])

Resume = int | Literal["newest", "none"]
"""Where a run goes on: from the checkpoint of a step, the newest, or none of them."""
_RESUME = re.compile(r"[0-9]{1,18}|none|newest")

ROOT_HELP = "Folder of the runs [default: $SLURMTRAIN_ROOT, then the site's]."


def examples(*lines: str) -> str:
    """The end of a command's help: lines to copy, none of them broken."""
    return "\b\n" + "\n".join(["Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


def root_option(function: F) -> F:
    """`--root`: where runs live."""
    return click.option("--root", type=UserPath(), default=None, metavar="DIR", help=ROOT_HELP)(function)


def _option(*names: str, metavar: str, text: str) -> Callable[[F], F]:
    return click.option(*names, default=None, metavar=metavar, help=text)


def _resume(ctx: click.Context, param: click.Parameter, value: str | None) -> Resume | None:
    if value is None or value in ("newest", "none"):
        return value  # type: ignore[return-value]  # the words of Resume
    if not _RESUME.fullmatch(value):
        problem = f"{value!r} is no step: --resume goes on from the newest checkpoint, --resume 1200 from that one"
        raise click.BadParameter(problem, ctx, param)
    return int(value)


def _spares(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == "auto":
        return value
    if not value.isdigit():
        raise click.BadParameter(f"{value!r} is neither a number nor auto", ctx, param)
    return int(value)


class ResumeCommand(click.Command):
    """A command with --resume, whose value may be left out: a word behind it that is no step is not its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, words(args))


def words(args: Sequence[str]) -> list[str]:
    """A command line in which --resume has its value; what stands behind `--` is left alone.

    >>> words(["--resume", "job.toml"]), words(["--resume", "12", "job.toml"]), words(["job.toml", "--resume", "--", "--resume"])
    (['--resume=newest', 'job.toml'], ['--resume=12', 'job.toml'], ['job.toml', '--resume=newest', '--', '--resume'])
    """
    found, rest = [], list(args)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if word == "--resume":
            word = f"--resume={rest.pop(0) if rest and _RESUME.fullmatch(rest[0]) else 'newest'}"
        found.append(word)
    return found + rest


JOB_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    _option("-N", "--nodes", metavar="N", text="Nodes that the world uses; 8-10 means 8 and 2 spares."),
    click.option(
        "--spares", callback=_spares, default=None, metavar="N|auto", help="Nodes kept ready beside those; auto: as many as pay off."
    ),
    click.option("--gpus-per-node", type=int, default=None, metavar="K", help="Part of a node; no --exclusive then."),
    _option("-J", "--name", "--job-name", metavar="NAME", text="Name of the run [default: the job file's]."),
    click.option("--site", default=None, metavar="SITE", help="Site, by name or file [default: $SLURMTRAIN_SITE, then the cluster's]."),
    click.option(
        "--set", "sets", multiple=True, metavar="KEY=VALUE", help="A value of the job file, such as training.steps=500; repeatable."
    ),
    click.option("--include", multiple=True, type=UserPath(), metavar="PATH", help="Copy this into the run's code too; repeatable."),
    click.option("--live", is_flag=True, help="Run the code where it is, not a copy."),
    click.option(
        "--preflight",
        type=click.Choice(["off", "quick", "full"]),
        default=None,
        help="What is looked at before each start of the ranks [default: the job file's, else quick].",
    ),
    click.option(
        "--resume",
        callback=_resume,
        default=None,
        metavar="[STEP|none]",
        help="Go on with the run of this name: from the newest checkpoint, from STEP (newer ones are set aside), or from none.",
    ),
    click.option(
        "--from", "branch", default=None, metavar="RUN[@STEP]", help="Begin with all of another run's checkpoint [default: its newest]."
    ),
    root_option,
)
"""Of `submit` and `run`."""

SLURM_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    _option("-p", "--partition", metavar="NAME", text="As sbatch's."),
    _option("-A", "--account", metavar="NAME", text="As sbatch's."),
    _option("-q", "--qos", metavar="NAME", text="As sbatch's."),
    _option("-t", "--time", metavar="TIME", text="Limit: minutes, H:MM:SS, D-HH:MM:SS, or 45s, 30m, 8h, 2d."),
    _option("-w", "--nodelist", metavar="NODES", text="As sbatch's."),
    _option("-x", "--exclude", metavar="NODES", text="As sbatch's."),
    _option("-C", "--constraint", metavar="FEATURES", text="As sbatch's."),
    _option("-d", "--dependency", metavar="WHEN", text="As sbatch's."),
    _option("--reservation", metavar="NAME", text="As sbatch's."),
    _option("-a", "--array", metavar="1-4%1", text="Segments of the run, one after the other."),
    _option("--template", metavar="NAME", text="An sbatch template, by name or file [default: the site's]."),
)
"""Of `submit` alone."""

KEYS = {
    "nodes": "slurm.nodes",
    "spares": "slurm.spares",
    "gpus_per_node": "slurm.gpus_per_node",
    "name": "run.name",
    "preflight": "preflight",
    "partition": "slurm.partition",
    "account": "slurm.account",
    "qos": "slurm.qos",
    "time": "slurm.time",
    "nodelist": "slurm.nodelist",
    "exclude": "slurm.exclude",
    "constraint": "slurm.constraint",
    "dependency": "slurm.dependency",
    "reservation": "slurm.reservation",
    "array": "slurm.array",
    "template": "slurm.template",
}
"""Option to the key of the job file that it says."""


def with_options(options: tuple[Callable[[Any], Any], ...]) -> Callable[[F], F]:
    """Add options to a command, in the order in which its help shows them."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate
