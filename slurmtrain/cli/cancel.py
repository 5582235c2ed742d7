"""`slurmtrain cancel`: end the job of a run at once, without a save and without a requeue."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import examples, root_option

if TYPE_CHECKING:
    from slurmtrain.cli.facts import Seen

BETWEEN_S = 0.5
"""Two signals at once would count as one."""


@click.command(epilog=examples("slurmtrain cancel my-run", "slurmtrain cancel 4711"))
@click.argument("name", metavar="RUN|JOBID")
@root_option
@click.pass_context
def command(ctx: click.Context, name: str, root: Path | None) -> None:
    """Cancel the job of a run at once (scancel); it is not requeued.

    What was trained since the last checkpoint may be lost: `slurmtrain stop` saves first.
    """
    from slurmtrain.cli.facts import locate, see

    doors = doors_of(ctx)
    run = locate(name, root, doors)
    seen = see(run, doors, fresh=True)
    if seen.state.over:
        click.echo(f"run {run.name} is {seen.state.state} already ({seen.state.reason}): nothing to cancel")
        return
    click.echo(_end(seen, doors))


def _end(seen: Seen, doors: Doors) -> str:
    """Cancel; the line that tells. Raises UserError for a run that cannot be ended from here."""
    from slurmtrain.cli.facts import whole_job
    from slurmtrain.errors import SlurmError, UserError
    from slurmtrain.telemetry.history import CANCEL_FAILED, add_act

    run, job, facts = seen.run, seen.facts.job, seen.facts
    by_job = bool(facts.job_id) and not facts.foreground
    if not by_job and not seen.on_this_host:
        where = (
            f"scancel {facts.job_id} ends its whole allocation" if facts.job_id else f"it runs on {seen.owner.host if seen.owner else '?'}"
        )
        raise UserError(f"run {run.name} was started by `slurmtrain run`: cancel it there by Ctrl-C twice; {where}")
    unwritten = ""
    try:
        add_act(run, doors.disk, doors.clock.time(), "cancel", job_id=facts.job_id)
    except OSError as error:  # a full disk, or a read-only one, keeps nobody from ending a job
        unwritten = f"; {run.history_jsonl}: {error.strerror}: the run's history does not tell of it"
    if by_job:
        target = whole_job(seen, job.job_id if job else facts.job_id)
        try:
            doors.slurm.cancel(target)
        except BaseException:
            with suppress(OSError):
                add_act(run, doors.disk, doors.clock.time(), CANCEL_FAILED, job_id=facts.job_id)
            raise
        with suppress(SlurmError):
            doors.slurm.my_jobs(max_age_s=0.0)
        return f"cancelled job {target} of run {run.name}{unwritten}"
    assert seen.owner is not None
    os.kill(seen.owner.pid, signal.SIGINT)
    doors.clock.sleep(BETWEEN_S)
    os.kill(seen.owner.pid, signal.SIGINT)
    return f"interrupted run {run.name} (pid {seen.owner.pid}){unwritten}"
