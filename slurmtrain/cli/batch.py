"""`--batch`: a heavy command as a CPU job of its own, given to sbatch as it was typed."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import F, with_options

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--batch", is_flag=True, help="Do it in a batch job, without GPUs; the options below are of that job."),
    click.option("--cpus", type=click.IntRange(min=1), default=None, metavar="N", help="CPUs of the job [default: 4]."),
    click.option("-t", "--time", default=None, metavar="TIME", help="Its limit, as of submit [default: the site's]."),
    click.option("-p", "--partition", default=None, metavar="NAME", help="As sbatch's."),
    click.option("-A", "--account", default=None, metavar="NAME", help="As sbatch's."),
    click.option("-q", "--qos", default=None, metavar="NAME", help="As sbatch's."),
    click.option("--site", default=None, metavar="SITE", help="Site, by name or file [default: $SLURMTRAIN_SITE, then the cluster's]."),
)
_NAMES = ("batch", "cpus", "time", "partition", "account", "qos", "site")
DEFAULT_CPUS = 4


def batch_options(function: F) -> F:
    """Adds --batch and its options to a command; give them to `sent_to_batch` as they come."""
    return with_options(_OPTIONS)(function)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM, by which Slurm ends a job, ends what is inside as an error does: it can clean up."""
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def output_beside(out: Path, what: str) -> Path:
    """Where a job that makes `out` writes what the command prints."""
    return Path(os.path.abspath(out.parent)) / f"slurm-{what}-{out.name.replace('%', '_')}-%j.out"  # noqa: PTH100 links stay


def sent_to_batch(ctx: click.Context, said: dict[str, Any], words: Sequence[str], *, output: Path) -> bool:
    """Take the batch options out of `said`; where --batch is among them, submit `slurmtrain WORDS` and say so (True).

    `output`: where the job writes what the command prints; %j in it is the job's id; its folder is made, for Slurm makes none. Raises
    UserError for batch options without --batch, SlurmError.
    """
    from slurmtrain.errors import UserError

    mine = {name: said.pop(name) for name in _NAMES}
    if not mine.pop("batch"):
        given = [name for name, value in mine.items() if value is not None]
        if given:
            raise UserError(f"--{given[0]} is of the batch job: give --batch too")
        return False
    _make_folder(output.parent)
    job_id = _submit(doors_of(ctx), mine, words, output)
    click.echo(f"Submitted batch job {job_id}")
    click.echo(f"output {str(output).replace('%j', job_id)}", err=True)
    return True


def _make_folder(folder: Path) -> None:
    """Slurm makes no folder for an output, and says nothing when it cannot write there."""
    from slurmtrain.errors import UserError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        fault = "" if os.access(folder, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)
    except OSError as error:
        fault = error.strerror or str(error)
    if fault:
        raise UserError(f"{folder}: {fault}: choose an --out where you can write")


def _submit(doors: Doors, mine: dict[str, Any], words: Sequence[str], output: Path) -> str:
    from slurmtrain.cli.runs import cluster_name
    from slurmtrain.config.sites import choose_site
    from slurmtrain.errors import UserError

    site = choose_site(mine["site"], doors.env, lambda: cluster_name(doors.slurm))
    if site.launcher == "mpiexec":
        raise UserError(f"site {site.name} has no Slurm: leave out --batch, or choose a cluster with --site")
    options = [
        f"--job-name=slurmtrain-{words[0]}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={mine['cpus'] or DEFAULT_CPUS}",
        f"--time={_limit(mine['time'] or site.slurm.time)}",
        f"--output={output}",
        f"--chdir={Path.cwd()}",
    ]
    for name in ("partition", "account", "qos"):
        value = mine[name] or getattr(site.slurm, name)
        options += [f"--{name}={value}"] if value else []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "command.sh"
        script.write_text(script_of(words, modules=site.environment.modules, exports=site.environment.set))
        return doors.slurm.submit(script, options=options)


def _limit(text: str) -> str:
    from slurmtrain.errors import UserError
    from slurmtrain.units import format_duration, parse_duration

    try:
        return format_duration(parse_duration(text))
    except ValueError as error:
        raise UserError(f"--time {error}") from error


def script_of(words: Sequence[str], *, modules: Sequence[str] = (), exports: dict[str, str] | None = None) -> str:
    """The batch script: the site's modules and variables, then this interpreter's `slurmtrain WORDS`."""
    command = [sys.executable, "-P", "-m", "slurmtrain.cli.main", *words]
    lines = [
        "#!/bin/bash -l",
        *(f"module load {shlex.quote(name)} || exit 78" for name in modules),
        *(f"export {name}={shlex.quote(value)}" for name, value in (exports or {}).items()),
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"
