"""`slurmtrain site faults`: nodes by their faults, and the site's rate of failures, from its fault log."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.doors import doors_of
from slurmtrain.cli.options import examples

if TYPE_CHECKING:
    from slurmtrain.telemetry.faultlog import NodeFaults, Rate

PIPED_WIDTH = 160
DAY_S = 86_400.0
_SHOWN = 40
"""Nodes in the table; --json has all."""


@click.command(
    "faults",
    short_help="Nodes by faults per day, and the rate of failures.",
    epilog=examples("slurmtrain site faults --since 30d", "slurmtrain site faults --site mycluster --json"),
)
@click.option("--since", default="30d", show_default=True, metavar="TIME", help="How far back: 30d, 12h, or a time as sbatch writes it.")
@click.option("--site", default=None, metavar="SITE", help="Site, by name or file [default: $SLURMTRAIN_SITE, then the cluster's].")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with all nodes.")
@click.pass_context
def command(ctx: click.Context, *, since: str, site: str | None, as_json: bool) -> None:
    """Show nodes by their faults per day, by cause, and how often nodes of this site fail.

    Read from reliability.fault_log of the site file, to which every run adds its ends.
    """
    from slurmtrain.cli.runs import cluster_name
    from slurmtrain.config.sites import choose_site
    from slurmtrain.telemetry.faultlog import by_node, rate_of, read_ends
    from slurmtrain.units import parse_duration

    doors = doors_of(ctx)
    try:
        back_s = parse_duration(since)
    except ValueError as error:
        raise click.UsageError(f"--since: {error}", ctx) from None
    if back_s <= 0:
        raise click.UsageError("--since: must be longer than nothing", ctx)
    chosen = choose_site(site, doors.env, lambda: cluster_name(doors.slurm))
    path = chosen.reliability.fault_log
    if path is None:
        raise click.ClickException(f"site {chosen.name} keeps no fault log: set reliability.fault_log in its file")
    begin = doors.clock.time() - back_s
    try:
        nodes = by_node(end for end in read_ends(path, begin) if end.site == chosen.name)
    except FileNotFoundError:
        nodes = []
    rate = rate_of(nodes)
    if as_json:
        click.echo(json.dumps(to_json(chosen.name, path, back_s, nodes, rate)))
        return
    _show(chosen.name, path, back_s, nodes, rate)


def to_json(site: str, path: Path, back_s: float, nodes: list[NodeFaults], rate: Rate) -> dict[str, Any]:
    """The object of `site faults --json`."""
    days = back_s / DAY_S
    return {
        "v": 1,
        "site": site,
        "fault_log": str(path),
        "since_s": back_s,
        "faults": rate.faults,
        "node_days": rate.node_days,
        "failures_per_node_day": rate.per_node_day,
        "interval_95": None if rate.low is None else [rate.low, rate.high],
        "nodes": [
            {
                "node": one.node,
                "faults": one.faults,
                "per_day": one.faults / days if days else None,
                "node_days": one.node_days,
                "causes": dict(one.causes),
                "last_t": one.last if math.isfinite(one.last) else None,
            }
            for one in nodes
        ],
    }


def _show(site: str, path: Path, back_s: float, nodes: list[NodeFaults], rate: Rate) -> None:
    from rich.console import Console
    from rich.table import Table

    from slurmtrain.resilience.lines import stamp
    from slurmtrain.units import counted

    days = back_s / DAY_S
    click.echo(f"site {site}, the last {days:g} days of {path}")
    bad = [one for one in nodes if one.faults]
    if bad:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("NODE", "FAULTS", "PER DAY", "NODE-DAYS", "LAST", "CAUSES"):
            table.add_column(name, no_wrap=True, justify="right" if name in {"FAULTS", "PER DAY", "NODE-DAYS"} else "left")
        for one in bad[:_SHOWN]:
            causes = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in one.causes.most_common())
            table.add_row(one.node, str(one.faults), f"{one.faults / days:.3g}", f"{one.node_days:.1f}", stamp(one.last), causes)
        Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPED_WIDTH).print(table)
        if len(bad) > _SHOWN:
            click.echo(f"and {counted(len(bad) - _SHOWN, 'more node')}: --json has all")
    click.echo(rate_line(rate))


def rate_line(rate: Rate) -> str:
    """The rate in words."""
    from slurmtrain.telemetry.faultlog import LEAST_FAULTS
    from slurmtrain.units import counted

    said = f"{counted(rate.faults, 'fault')} in {rate.node_days:,.1f} node-days"
    if rate.per_node_day is None or rate.low is None or rate.high is None:
        return said
    per = f"{1000 * rate.per_node_day:.3g} in 1,000 node-days (95 %: {1000 * rate.low:.3g} to {1000 * rate.high:.3g})"
    used = (
        "runs go by it" if rate.faults >= LEAST_FAULTS else f"runs go by reliability.failures_per_node_day until there are {LEAST_FAULTS}"
    )
    return f"{said}: {per}; {used}"
