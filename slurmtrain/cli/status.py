"""`slurmtrain status`: the runs under the root, or one run: state, progress, the error, and what to type next."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import examples, root_option

if TYPE_CHECKING:
    from slurmtrain.cli.report import Report

REASON_WIDTH = 100
"""Characters of a reason in the table; `status RUN` tells all of it."""
PIPED_WIDTH = 240
"""Columns of a table that no terminal limits."""


@click.command(epilog=examples("slurmtrain status", "slurmtrain status my-run --json", "slurmtrain status 4711 --watch"))
@click.argument("name", metavar="[RUN|JOBID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object (without RUN: an array of them).")
@click.option("-w", "--watch", is_flag=True, help="Follow the run to its end; exit code 0 when it finished or was stopped, else 1.")
@root_option
@click.pass_context
def command(ctx: click.Context, name: str | None, *, as_json: bool, watch: bool, root: Path | None) -> None:
    """Show runs, or one run, and what to do next."""
    doors = doors_of(ctx)
    if name is None:
        if watch:
            raise click.UsageError("--watch needs a RUN")
        _table(doors, root, as_json=as_json)
        return
    from slurmtrain.cli.facts import locate, see
    from slurmtrain.cli.report import lines, report, word_for

    run = locate(name, root, doors)
    word = word_for(run, name, root)
    if watch:
        from slurmtrain.cli.progress import follow

        ctx.exit(follow(run, doors, word))
    told = report(see(run, doors), word=word)
    if as_json:
        click.echo(json.dumps(told.to_json()))
        return
    for label, text in lines(told):
        click.echo(f"{label:<11} {text}")


def _table(doors: Doors, root: Path | None, *, as_json: bool) -> None:
    from slurmtrain.cli.facts import see
    from slurmtrain.cli.report import report
    from slurmtrain.cli.runs import all_runs, find_root

    folder = find_root(root, doors.env, doors.slurm)
    told = [report(see(run, doors)) for run in all_runs(folder)]
    if as_json:
        click.echo(json.dumps([one.to_json() for one in told]))
    elif not told:
        click.echo(f"no runs under {folder}", err=True)
    else:
        _print(told)


def _print(told: list[Report]) -> None:
    from rich.console import Console
    from rich.table import Table

    from slurmtrain.cli.report import progress_text
    from slurmtrain.errors import one_line
    from slurmtrain.slurm.hostlist import fold

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("RUN", "STATE", "JOB", "ATTEMPT", "STEP", "CHECKPOINT", "NODES", "REASON"):
        table.add_column(title, no_wrap=title != "REASON", overflow="fold")
    for r in told:
        attempt, durable = ("" if value is None else str(value) for value in (r.attempt, r.last_durable_step))
        table.add_row(r.run, r.state, r.job_id, attempt, progress_text(r), durable, fold(r.nodes), one_line(r.reason, REASON_WIDTH))
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPED_WIDTH).print(table)
