"""`slurmtrain ckpt now`: a run saves at its next step, and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import examples, root_option

if TYPE_CHECKING:
    from slurmtrain.cli.facts import Seen
    from slurmtrain.rundir import RunDir
    from slurmtrain.telemetry.reader import EventTail

POLL_S = 1.0
ASK_S = 10.0
"""How often the run's state is asked for while one waits."""
ASKED = "save"
"""The act in the history."""


@click.command(
    "now", short_help="Let a run save at its next step.", epilog=examples("slurmtrain ckpt now my-run", "slurmtrain ckpt now my-run --wait")
)
@click.argument("name", metavar="RUN|JOBID")
@click.option("--wait", is_flag=True, help="Until the checkpoint is there; exit code 1 where the run ends, or the save fails, before.")
@root_option
@click.pass_context
def command(ctx: click.Context, name: str, root: Path | None, *, wait: bool) -> None:
    """Let a running run save after the step that it is in; it goes on training."""
    from slurmtrain.cli.facts import config_of, locate, see
    from slurmtrain.cli.report import recent_steps
    from slurmtrain.cli.script import refuse_for_script
    from slurmtrain.errors import UserError
    from slurmtrain.store.listing import newest_durable_step
    from slurmtrain.telemetry.history import add_act
    from slurmtrain.telemetry.reader import EventTail

    doors = doors_of(ctx)
    run = locate(name, root, doors)
    refuse_for_script(config_of(run), "nothing was asked")
    seen = see(run, doors, fresh=True)
    if seen.state.state != "RUNNING":
        raise UserError(f"run {run.name} does not train now: it is {seen.state.state}{_why(seen)}: nothing was asked")
    before = newest_durable_step(run.checkpoints)
    tail = EventTail(run.event_file(0))
    tail.poll()
    _touch(run)
    add_act(run, doors.disk, doors.clock.time(), ASKED, job_id=seen.facts.job_id)
    steps = recent_steps(run)
    after = f"after step {steps[-1].fields.get('step', 0) + 1} or so" if steps else "after its first step"
    newest = "there is none yet" if before is None else f"the newest is of step {before}"
    click.echo(f"run {run.name} saves {after} and goes on; {newest}", err=wait)
    if wait:
        ctx.exit(_wait(run, before, tail, doors))


def _touch(run: RunDir) -> None:
    from slurmtrain.errors import UserError

    try:
        run.save_request.touch()
    except OSError as error:
        raise UserError(f"{run.save_request}: {error.strerror or error}: nothing was asked") from error


def _wait(run: RunDir, before: int | None, tail: EventTail, doors: Doors) -> int:
    """0 when a newer checkpoint is durable, 1 when that can no longer be."""
    from slurmtrain.cli.facts import see
    from slurmtrain.errors import EXIT_FAULT, EXIT_OK
    from slurmtrain.store.listing import newest_durable_step, steps_present

    asked_at = doors.clock.monotonic()
    while True:
        over = None
        if doors.clock.monotonic() - asked_at >= ASK_S or run.finished.exists():
            asked_at = doors.clock.monotonic()
            over = see(run, doors)
        failed = next((event for event in tail.poll() if event.kind == "save_failed"), None)
        if max(steps_present(run.checkpoints), default=-1) > (-1 if before is None else before):
            newest = newest_durable_step(run.checkpoints)
            if newest is not None and (before is None or newest > before):
                click.echo(f"checkpoint of step {newest}")
                return EXIT_OK
        if failed is not None:
            click.echo(f"slurmtrain: the save of step {failed.fields.get('step')} failed: {failed.fields.get('error')}", err=True)
            return EXIT_FAULT
        if over is not None and over.state.state != "RUNNING":
            click.echo(f"slurmtrain: run {run.name} is {over.state.state}{_why(over)} and made no newer checkpoint", err=True)
            return EXIT_FAULT
        doors.clock.sleep(POLL_S)


def _why(seen: Seen) -> str:
    return f" ({seen.state.reason})" if seen.state.reason else ""
