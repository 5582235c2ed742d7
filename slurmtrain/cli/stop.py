"""`slurmtrain stop`: save and finish, no requeue."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import examples, root_option


@click.command(epilog=examples("slurmtrain stop my-run"))
@click.argument("name", metavar="RUN|JOBID")
@root_option
@click.pass_context
def command(ctx: click.Context, name: str, root: Path | None) -> None:
    """Save, then end the run; it is not requeued.

    A run that waits is taken out of the queue. `slurmtrain submit --resume` goes on later.
    """
    from slurmtrain.cli.facts import locate, see, whole_job
    from slurmtrain.errors import SlurmtrainError
    from slurmtrain.telemetry.history import add_act

    doors = doors_of(ctx)
    run = locate(name, root, doors)
    seen = see(run, doors, fresh=True)
    if seen.state.over:
        click.echo(f"run {run.name} is {seen.state.state} already ({seen.state.reason}): nothing to stop")
        return
    try:
        run.stop.touch()
    except OSError as error:
        instead = f"`slurmtrain cancel {run.name}` ends it without a save"
        raise SlurmtrainError(f"{run.stop}: {error.strerror}: nothing was asked; {instead}") from None
    with suppress(OSError):  # it is asked, whether the history tells of it or not
        add_act(run, doors.disk, doors.clock.time(), "stop", job_id=seen.facts.job_id)
    job = seen.facts.job
    if job is not None and job.state == "PENDING":
        waiting = whole_job(seen, job.job_id)
        _take_out(doors, waiting)
        click.echo(f"run {run.name}: job {waiting} waited and is out of the queue; nothing was lost")
        return
    click.echo(f"run {run.name} saves after the step it is in, then ends; it is not requeued (slurmtrain status {run.name})")


def _take_out(doors: Doors, job_id: str) -> None:
    doors.slurm.cancel(job_id)
    doors.slurm.my_jobs(max_age_s=0.0)
