"""`slurmtrain preflight history`: what preflights found of the nodes, from the site's or the root's file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.doors import doors_of
from slurmtrain.cli.options import examples, root_option

if TYPE_CHECKING:
    from slurmtrain.preflight.history import Entry

_SHOWN = 100
"""Lines of the table; --json has all."""


@click.command("history", epilog=examples("slurmtrain preflight history --since 7d", "slurmtrain preflight history n17 --json"))
@click.argument("node", required=False)
@click.option("--since", default="30d", show_default=True, metavar="TIME", help="How far back: 30d, 12h, or a time as sbatch writes it.")
@click.option("--site", default=None, metavar="SITE", help="Site, by name or file [default: $SLURMTRAIN_SITE, then the cluster's].")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, as the file has them.")
@root_option
@click.pass_context
def command(ctx: click.Context, node: str | None, *, since: str, site: str | None, as_json: bool, root: Path | None) -> None:
    """Show what preflights found: one line for each node and preflight, the newest last.

    Of preflight.history of the site, else preflight.jsonl in the root of the runs. Without NODE: of all nodes.
    """
    from slurmtrain.cli.preflight_target import target_of
    from slurmtrain.preflight.history import read_history
    from slurmtrain.units import parse_duration

    doors = doors_of(ctx)
    try:
        back_s = parse_duration(since)
    except ValueError as error:
        raise click.UsageError(f"--since: {error}", ctx) from None
    path = target_of(None, site, root, doors, here=False).history(doors.env)
    assert path is not None
    found = [one for one in read_history(path, doors.clock.time() - back_s) if node in (None, one.node)]
    if as_json:
        for one in found:
            click.echo(one.to_line(), nl=False)
        return
    if not found:
        click.echo(f"no preflight{f' of {node}' if node else ''} in {path}", err=True)
        return
    _show(sorted(found, key=lambda one: one.t))


def _show(found: Sequence[Entry]) -> None:
    from slurmtrain.cli.preflight_show import print_table, table_of
    from slurmtrain.resilience.lines import stamp

    if len(found) > _SHOWN:
        click.echo(f"{len(found) - _SHOWN} older lines: --json has all")
    table = table_of("TIME", "NODE", "LEVEL", "BY", "JOB", "RUN", "FIT", "FOUND")
    for one in found[-_SHOWN:]:
        said = "; ".join(str(finding) for finding in one.findings) or _figures(one)
        table.add_row(stamp(one.t), one.node, one.level, one.by, one.job_id, one.run, "yes" if one.ok else "no", said)
    print_table(table)


def _figures(one: Entry) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in one.figures.items())
