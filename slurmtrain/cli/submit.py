"""`slurmtrain submit`: a run folder, then a batch job for it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import JOB_OPTIONS, KEYS, SLURM_OPTIONS, Resume, ResumeCommand, examples, with_options
from slurmtrain.cli.paths import UserPath

if TYPE_CHECKING:
    from slurmtrain.cli.assemble import Draft, Wish
    from slurmtrain.cli.start import Start
    from slurmtrain.launch.job import RunJob
    from slurmtrain.launch.prepare import RunContents


@click.command(
    cls=ResumeCommand,
    context_settings={"max_content_width": 110},
    epilog=examples(
        "slurmtrain submit job.toml -N 4 -t 8h --set training.steps=1000 -- --mail-type=END",
        "slurmtrain submit job.toml --resume",
        "slurmtrain submit job.toml --resume 1200 --set optimizer.lr=1e-4",
        "slurmtrain submit job.toml -J lower-lr --from my-run@1200 --set optimizer.lr=1e-4",
    ),
)
@click.argument("job_file", metavar="JOB.toml", type=UserPath())
@click.argument("sbatch_options", metavar="[-- SBATCH OPTIONS]", nargs=-1, type=click.UNPROCESSED)
@with_options(JOB_OPTIONS)
@with_options(SLURM_OPTIONS)
@click.option("--dry-run", is_flag=True, help="Print the batch script; write and submit nothing.")
@click.option("--parsable", is_flag=True, help="Print the job id alone.")
@click.option(
    "--prepare", default=None, hidden=True, metavar="DIGEST", help="Make the run folder alone, if job and site are those of a dry run."
)
@click.pass_context
def command(ctx: click.Context, /, job_file: Path, sbatch_options: tuple[str, ...], **said: Any) -> None:
    """Submit a training job to Slurm.

    Prints `Submitted batch job N`, as sbatch does. The run lives in a folder of its name under the root; everything
    that the job needs is there before sbatch is called. Words after -- go to sbatch as they are.
    """
    from slurmtrain.cli.assemble import Wish, assemble, draft

    values = {name: said[name] for name in KEYS}
    argv = tuple(sys.argv)
    wish = Wish(job_file, values, said["sets"], said["include"], said["live"], said["site"], said["root"], sbatch_options, argv)
    doors = doors_of(ctx)
    made = draft(wish, doors)
    if said["prepare"] is not None:
        _prepare(replace(wish, branch=said["branch"]), made, said["prepare"], doors)
        return
    start = check_submission(made, doors, resume=said["resume"], branch=said["branch"], root=said["root"])
    contents = assemble(replace(wish, branch=start.branch), made, doors)
    for note in made.notes:
        click.echo(note, err=True)
    if said["dry_run"]:
        click.echo(contents.script, nl=False)
        click.echo(f"# would run: sbatch {' '.join(contents.request.sbatch_options)} SCRIPT", err=True)
        return
    jobs = submit_contents(made, contents, doors, start)
    _tell(made, jobs, named=made.run.name if said["root"] is None else str(made.run.path), parsable=said["parsable"])


def check_submission(made: Draft, doors: Doors, *, resume: Resume | None, branch: str | None, root: Path | None) -> Start:
    """What only a submission needs to hold; how the run begins. Raises SlurmtrainError."""
    from slurmtrain.cli.resume import check_idle
    from slurmtrain.cli.start import start_of
    from slurmtrain.errors import UserError
    from slurmtrain.launch.directives import check_time_limit

    if made.site.launcher == "mpiexec":
        raise UserError(f"site {made.site.name} has no Slurm: slurmtrain run trains here; or choose a cluster with --site")
    check_time_limit(made.job, made.site)
    return start_of(made, doors, resume=resume, branch=branch, root=root, check_idle=lambda: check_idle(made.run, doors.slurm))


def _prepare(wish: Wish, made: Draft, expected: str, doors: Doors) -> None:
    """Make the run folder for a script that somebody gave to sbatch by hand. Raises SlurmtrainError."""
    from slurmtrain.cli.assemble import assemble, promised
    from slurmtrain.cli.publish import publish
    from slurmtrain.cli.runs import is_run, job_of
    from slurmtrain.cli.start import start_of
    from slurmtrain.errors import ConfigError
    from slurmtrain.telemetry.history import add_act

    if is_run(made.run.path):
        return
    if promised(made) != expected:
        raise ConfigError(
            "job or site are not as when this script was made: make it anew with slurmtrain submit --dry-run", where=str(wish.job_file)
        )
    start = start_of(made, doors, resume=None, branch=wish.branch, root=wish.root, check_idle=lambda: None)
    publish(made, assemble(wish, made, doors), doors, start)
    with suppress(OSError):
        add_act(made.run, doors.disk, doors.clock.time(), "prepare", job_id=job_of(doors.env), detail=start.note)


def submit_contents(
    made: Draft, contents: RunContents, doors: Doors, start: Start, *, before: Callable[[], None] = lambda: None
) -> list[RunJob]:
    """Make the run folder, do what is to be done `before` the job, and submit it. Raises SlurmtrainError, OSError."""
    from slurmtrain.cli.assemble import script_of
    from slurmtrain.cli.publish import publish, take_back
    from slurmtrain.errors import SlurmError, SubmitUnknownError
    from slurmtrain.launch.executor import SlurmExecutor
    from slurmtrain.launch.request import asked_for
    from slurmtrain.resilience.payload import run as payload
    from slurmtrain.telemetry.history import add_act

    undo = publish(made, contents, doors, start)
    executor = SlurmExecutor(contents.request, script_of(contents.request, doors), client=doors.slurm, disk=doors.disk)
    try:
        before()
        jobs = executor.submit_run(payload)
    except SubmitUnknownError:
        raise
    except BaseException as error:
        take_back(undo)
        if type(error) is SlurmError and (asked := asked_for(contents.request)):
            raise SlurmError(f"{error} (asked for {' '.join(asked)})") from None
        raise
    with suppress(OSError):
        add_act(made.run, doors.disk, doors.clock.time(), "submit", job_id=jobs[0].job_id.partition("_")[0], detail=start.note)
    return jobs


def _tell(made: Draft, jobs: list[RunJob], *, named: str, parsable: bool) -> None:
    from slurmtrain.launch.root import MOUNTS, local_warning

    job_id = jobs[0].job_id.partition("_")[0]
    if parsable:
        click.echo(job_id)
        return
    click.echo(f"Submitted batch job {job_id}")
    click.echo(f"run folder {made.run.path}\nfollow it: slurmtrain logs {shlex.quote(named)} -f", err=True)
    with suppress(OSError):
        warning = local_warning(made.run.path, MOUNTS.read_text()) if made.site.fabric.kind != "loopback" else None
        if warning:
            click.echo(f"warning: {warning}", err=True)
