"""`slurmtrain goodput`: where a run's time and its GPU-hours went, what of them was training that stands, and what its faults cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.doors import doors_of
from slurmtrain.cli.options import examples, root_option

if TYPE_CHECKING:
    from slurmtrain.cli.facts import Seen
    from slurmtrain.report.goodput import Accounts, CauseCost

UNSEEN = "whether it runs cannot be told from here: counted up to the newest sign of it"


@click.command(epilog=examples("slurmtrain goodput my-run", "slurmtrain goodput 4711 --json"))
@click.argument("name", metavar="RUN|JOBID")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; times in whole microseconds, which add up exactly.")
@root_option
@click.pass_context
def command(ctx: click.Context, name: str, *, as_json: bool, root: Path | None) -> None:
    """Show where a run's time and GPU-hours went, how much of it was training that stands, and what its faults cost.

    Nothing but the run folder is needed, no accounting of Slurm's. docs/recovery.md defines every figure.
    """
    from slurmtrain.cli.facts import locate, see
    from slurmtrain.report.folder import read_story
    from slurmtrain.report.goodput import accounts

    doors = doors_of(ctx)
    run = locate(name, root, doors)
    seen = see(run, doors)
    runs, unseen = _runs(seen)
    story = read_story(run, now=doors.clock.time() if runs else None, waits=seen.state.state in {"PENDING", "REQUEUED"})
    try:
        told = accounts(story)
    except ValueError as error:
        raise click.ClickException(f"{run.path}: there is nothing to account for: {error}") from None
    notes = (*told.notes, *([UNSEEN] if unseen else []))
    if as_json:
        click.echo(json.dumps(to_json(told, seen, notes)))
        return
    from slurmtrain.cli.goodput_table import show

    show(told, f"{run.name}  ({run.path})", seen.state.state, notes)


def _runs(seen: Seen) -> tuple[bool, bool]:
    """Whether the run goes on (its time is counted up to now), and whether that cannot be told."""
    if seen.state.over:
        return False, False
    known = seen.facts.answer == "yes" or seen.facts.process is not None
    return known, not known


def to_json(told: Accounts, seen: Seen, notes: tuple[str, ...]) -> dict[str, Any]:
    """The object of `goodput --json`."""
    return {
        "v": 1,
        "run": seen.run.name,
        "path": str(seen.run.path),
        "state": seen.state.state,
        "begin_us": told.begin_us,
        "end_us": told.end_us,
        "wall_us": told.wall_us,
        "parts_us": told.parts_us,
        "detail_us": dict(told.detail_us),
        "billed_gpu_us": told.billed_us,
        "gpu_us": dict(told.gpu_us),
        "ettr": told.ettr,
        "ettr_without_queue": told.ettr_without_queue,
        "expected_ettr": told.expected_ettr,
        "scheduling_goodput": told.scheduling,
        "runtime_goodput": told.ettr_without_queue,
        "program_goodput": told.program,
        "ml_productivity_goodput": told.ml_productivity,
        "useful_gpu_share": told.useful_gpu_share,
        "attempts": told.attempts,
        "faults": told.faults,
        "kept_steps": told.kept_steps,
        "redone_steps": told.redone_steps,
        "causes": {name: _cause(cost) for name, cost in told.causes.items()},
        "notes": list(notes),
    }


def _cause(cost: CauseCost) -> dict[str, Any]:
    return {
        "ends": cost.ends,
        "mttd_s": cost.mttd_s,
        "mttr_s": cost.mttr_s,
        "lost_us": cost.lost_us,
        "lost_gpu_us": cost.lost_gpu_us,
    }
