"""The accounts of a run as people read them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table

from slurmtrain.report.goodput import SPARES, Accounts, is_fault
from slurmtrain.report.kinds import KINDS, PARTS, part_of
from slurmtrain.report.marks import MICRO
from slurmtrain.resilience.lines import stamp
from slurmtrain.units import format_duration

PIPED_WIDTH = 120
"""Columns of a table that no terminal limits."""
_NAMES = {
    "startup": "start-up",
    "productive": "productive steps",
    "redone": "re-done steps",
    "checkpoint": "checkpoint stalls",
    "python": "python, imports",
    "mpi": "MPI",
    "group": "process group",
    "check": "node check",
    "launch": "launch of the ranks",
    "ending": "ending the step",
    "restart": "restart",
    SPARES: "spares idle",
}


def show(told: Accounts, title: str, state: str, notes: Sequence[str]) -> None:
    """Print them."""
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
    click.echo(f"run       {title}")
    click.echo(f"state     {state}")
    click.echo(f"time      {stamp(told.begin_us / MICRO)} - {stamp(told.end_us / MICRO)}  {clock(told.wall_us)}")
    click.echo(f"steps     {told.kept_steps} stand, {told.redone_steps} trained again; attempts {told.attempts}, faults {told.faults}\n")
    console.print(_parts(told))
    click.echo()
    for name, value in _figures(told):
        click.echo(f"{name:<24} {value}")
    if any(is_fault(name) for name in told.causes):
        click.echo()
        console.print(_causes(told))
    for note in notes:
        click.echo(f"note: {note}")


def _parts(told: Accounts) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("PART", no_wrap=True)
    for name in ("TIME", "SHARE", "GPU-HOURS"):
        table.add_column(name, justify="right", no_wrap=True)
    for part in PARTS:
        took = told.parts_us[part]
        table.add_row(_NAMES.get(part, part), clock(took), share(took, told.wall_us), hours(told.gpu_us.get(part, 0)))
        inner = [kind for kind in KINDS if part_of(kind) == part and told.detail_us.get(kind)]
        for kind in inner if inner != [part] else []:
            table.add_row(f"  {_NAMES.get(kind, kind)}", clock(told.detail_us[kind]), share(told.detail_us[kind], told.wall_us), "")
    table.add_row(_NAMES[SPARES], "", "", hours(told.gpu_us.get(SPARES, 0)))
    table.add_row("all", clock(told.wall_us), share(told.wall_us, told.wall_us), hours(told.billed_us))
    return table


def _figures(told: Accounts) -> list[tuple[str, str]]:
    expected = f" (its own faults, restarts and saves let expect {percent(told.expected_ettr)})" if told.expected_ettr is not None else ""
    parts = f"scheduling {percent(told.scheduling)} x runtime {percent(told.ettr_without_queue)} x program (MFU) {percent(told.program)}"
    return [
        ("ETTR", f"{percent(told.ettr)} with the queue, {percent(told.ettr_without_queue)} without{expected}"),
        ("ML productivity goodput", f"{percent(told.ml_productivity)} = {parts}"),
        ("useful GPU-hours", f"{percent(told.useful_gpu_share)} of {hours(told.billed_us)}"),
    ]


def _causes(told: Accounts) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("CAUSE", no_wrap=True)
    for name in ("ENDS", "MTTD", "MTTR", "TIME LOST", "GPU-HOURS LOST"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, cost in told.causes.items():
        detect, repair = ("-" if one is None else clock(round(one * MICRO)) for one in (cost.mttd_s, cost.mttr_s))
        table.add_row(name.replace("_", " "), str(cost.ends), detect, repair, clock(cost.lost_us), hours(cost.lost_gpu_us))
    return table


def clock(us: int) -> str:
    """A length of time: seconds with what is behind the point below two minutes, else as Slurm writes it.

    >>> clock(12_340_000), clock(3_600_000_000), clock(0)
    ('12.34 s', '01:00:00', '0')
    """
    if us < 120 * MICRO:
        return f"{us / MICRO:.2f} s" if us else "0"
    return format_duration(us / MICRO)


def hours(gpu_us: int) -> str:
    """GPU-hours, with three digits where they are few."""
    value = gpu_us / MICRO / 3600
    return f"{value:.4f}" if 0 < value < 1 else f"{value:,.1f}"


def share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
