"""A preflight as people read it: troubles with their remedies, warnings apart, figures, what was not tested, and one line of the whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from slurmtrain.preflight.finding import OUT, Finding
from slurmtrain.slurm.hostlist import fold
from slurmtrain.units import counted

if TYPE_CHECKING:
    from rich.table import Table

    from slurmtrain.preflight.listing import Listed
    from slurmtrain.preflight.report import Report

PIPED_WIDTH = 1000
_PAIRS = 8
"""Pairs that were not tested and are named."""


def show(report: Report) -> None:
    """On stdout."""
    _troubles("NOT FIT", [one for one in report.findings if one.grade in OUT])
    _troubles("WARNING", [one for one in report.findings if one.grade == "warn"])
    _figures(report)
    for line in (*_untested(report), *report.notes):
        click.echo(line)
    click.echo(verdict(report))
    if report.folder:
        click.echo(f"kept: {report.folder}", err=True)


def verdict(report: Report) -> str:
    """The last line."""
    cached = f", {counted(len(report.cached), 'node')} known to be fit since {max(report.cached.values()):.0f} s" if report.cached else ""
    took = f"{report.level}, {report.seconds:.1f} s{cached}"
    if report.ok:
        return f"{counted(len(report.nodes), 'node')} may start: {fold(report.nodes)} ({took})"
    fit = f"; fit: {fold(report.fit)}" if report.fit else ""
    return f"{len(report.out)} of {counted(len(report.nodes), 'node')} may not start: {fold(report.out)}{fit} ({took})"


def show_list(found: Sequence[Listed], *, as_json: bool) -> None:
    """All checks, one line each."""
    if as_json:
        click.echo(json.dumps({"v": 1, "checks": [vars(one) for one in found]}))
        return
    table = table_of("CHECK", "PART", "MADE", "WHAT IT LOOKS AT")
    for one in found:
        table.add_row(one.name, one.part, "yes" if one.made else "no", f"{one.about}{f' [{one.why}]' if one.why else ''}")
    print_table(table)


def _troubles(title: str, found: Iterable[Finding]) -> None:
    """Nodes with the same trouble share a line."""
    nodes: dict[tuple[str, str, str], list[str]] = {}
    for one in found:
        nodes.setdefault((one.check, str(one).removeprefix(f"{one.check}: "), one.peer), []).append(one.node)
    if not nodes:
        return
    table = table_of(title, "CHECK", "WHAT WAS FOUND, AND WHAT TO DO")
    for (check, words, peer), names in nodes.items():
        table.add_row(fold(names), check, f"with {peer}: {words}" if peer and f"with {peer}" not in words else words)
    print_table(table)


def _figures(report: Report) -> None:
    names = sorted({name for known in report.figures.values() for name in known})
    if not names:
        return
    table = table_of("NODE", *names)
    for node in report.nodes:
        known = report.figures.get(node, {})
        if known:
            table.add_row(node, *(f"{known[name]:.4g}" if name in known else "" for name in names))
    print_table(table)


def _untested(report: Report) -> list[str]:
    if not report.untested:
        return []
    shown = ", ".join("-".join(pair) for pair in report.untested[:_PAIRS])
    more = " ..." if len(report.untested) > _PAIRS else ""
    return [f"{counted(len(report.untested), 'pair')} not tested for want of time (preflight.pairs_s): {shown}{more}"]


def table_of(*titles: str) -> Table:
    """A table whose last column alone may be broken."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        made.add_column(title, no_wrap=title != titles[-1], overflow="fold")
    return made


def print_table(table: Table) -> None:
    """Without the blanks that fill its last column."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        click.echo(line.rstrip())
