"""`slurmtrain ckpt list`: a run's checkpoints, what they are good for, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import examples, root_option

if TYPE_CHECKING:
    from slurmtrain.cli.ckpt_facts import Sight, Verified
    from slurmtrain.rundir import RunDir
    from slurmtrain.store.local import LocalNewest

PIPED_WIDTH = 240
"""Columns of a table that no terminal limits."""
TIER = "shared"
"""Of those that can be seen from a login node. Of those on the nodes' own disks the run tells the newest."""


@dataclass(frozen=True)
class Row:
    """One checkpoint. `why`: of one that was set aside; `purge_t`: when the site removes its first file if nobody touches it."""

    step: int
    sight: Sight
    verified: Verified | None
    durable: bool = False
    in_use: bool = False
    goes_next: bool = False
    aside: bool = False
    why: str = ""
    purge_t: float | None = None

    def to_json(self, now: float) -> dict[str, Any]:
        sight, manifest = self.sight, self.sight.manifest
        return {
            "step": self.step,
            "path": str(sight.folder),
            "t": sight.t,
            "age_s": round(now - sight.t, 1),
            "bytes": sight.bytes,
            "files": sight.files,
            "tokens": manifest.tokens if manifest else None,
            "attempt": manifest.attempt if manifest else None,
            "layout": dict(manifest.layout) if manifest else None,
            "problem": sight.problem,
            "verified": self.verified.__dict__ if self.verified else None,
            "tier": TIER,
            "durable": self.durable,
            "in_use": self.in_use,
            "goes_next": self.goes_next,
            "aside": self.aside,
            "why": self.why,
            "purge_t": self.purge_t,
        }


@click.command(
    "list", short_help="List a run's checkpoints.", epilog=examples("slurmtrain ckpt list my-run", "slurmtrain ckpt list my-run --json")
)
@click.argument("name", metavar="RUN|JOBID")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@root_option
@click.pass_context
def command(ctx: click.Context, name: str, root: Path | None, *, as_json: bool) -> None:
    """List a run's checkpoints, oldest first: size, layout, whether their files are whole, and which one goes next."""
    from slurmtrain.cli.facts import locate
    from slurmtrain.cli.script import script_checkpoint
    from slurmtrain.store.local import newest_local

    doors = doors_of(ctx)
    run = locate(name, root, doors)
    now = doors.clock.time()
    rows, local = rows_of(run, doors), newest_local(run)
    if as_json:
        durable = next((row.step for row in rows if row.durable), None)
        told = {"v": 1, "run": run.name, "path": str(run.checkpoints), "durable": durable, "checkpoints": [r.to_json(now) for r in rows]}
        click.echo(json.dumps({**told, "local": local and {**local.__dict__, "nodes": list(local.nodes)}}))
    elif rows or local:
        _print(rows, local, now)
    else:
        click.echo(script_checkpoint(run) or f"run {run.name} has no checkpoint yet", err=True)


def rows_of(run: RunDir, doors: Doors) -> list[Row]:
    """Published ones and those set aside, by step. Raises UserError where the folder cannot be read."""
    from slurmtrain.cli.ckpt_facts import purge_days_of, purge_time, verifications
    from slurmtrain.errors import UserError
    from slurmtrain.store.leases import leased

    try:
        seen, asides = _published(run), _asides(run)
        used = leased(run, doors.clock.time())
    except OSError as error:
        raise UserError(f"{error.filename or run.checkpoints}: {error.strerror or error}") from error
    goes = _going_next(run, seen, used, doors)
    known, days = verifications(run), purge_days_of(run)
    compared = {step: known(sight) for step, sight in seen.items()}
    damaged = {step for step, one in compared.items() if one is not None and not one.good}
    durable = max((step for step, sight in seen.items() if not sight.problem and step not in damaged), default=None)
    rows = [
        Row(step, sight, compared[step], step == durable, step in used, step in goes, purge_t=purge_time(sight, days))
        for step, sight in seen.items()
    ]
    rows += [Row(step, sight, None, aside=True, why=why, purge_t=purge_time(sight, days)) for step, why, sight in asides]
    return sorted(rows, key=lambda row: (row.step, not row.aside, row.sight.folder.name))


def _published(run: RunDir) -> dict[int, Sight]:
    """Those that vanish while one looks are left out: retention is at work."""
    from slurmtrain.cli.ckpt_facts import look
    from slurmtrain.store.listing import folders_present

    found = {}
    for step, folder in folders_present(run.checkpoints):
        with suppress(FileNotFoundError):
            found[step] = look(folder)
    return found


def _asides(run: RunDir) -> list[tuple[int, str, Sight]]:
    from slurmtrain.cli.ckpt_facts import look
    from slurmtrain.store.aside import asides

    found = []
    for one in asides(run):
        with suppress(FileNotFoundError):
            found.append((one.step, one.why, look(one.folder)))
    return found


def _going_next(run: RunDir, seen: Mapping[int, Sight], used: Collection[int], doors: Doors) -> set[int]:
    """What the retention of the run's job removes after the next save."""
    from slurmtrain.cli.ckpt_retention import policy_of
    from slurmtrain.cli.facts import config_of
    from slurmtrain.store.retention import Kept, kept, to_remove

    job = config_of(run)
    if job is None or not seen:
        return set()
    after = max(seen) + (job.checkpoint.every_steps or 1)
    policy = policy_of(job.checkpoint)
    there = [*kept(run, manifests=policy.needs_manifests), Kept(after, doors.clock.time())]
    return set(to_remove(there, policy, durable=after, leased=set(used)))


def _print(rows: Sequence[Row], local: LocalNewest | None, now: float) -> None:
    from rich.console import Console
    from rich.table import Table

    from slurmtrain.cli.ckpt_facts import age_text, layout_text
    from slurmtrain.slurm.hostlist import fold
    from slurmtrain.units import format_size

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("STEP", "AGE", "SIZE", "FILES", "LAYOUT", "VERIFIED", "TIER", "PURGED", "NOTES"):
        right = title in {"STEP", "AGE", "SIZE", "FILES"}
        table.add_column(title, no_wrap=title != "NOTES", overflow="fold", justify="right" if right else "left")
    for row in rows:
        sight = row.sight
        layout = layout_text(sight.manifest.layout) if sight.manifest else ""
        purge = "" if row.purge_t is None else f"in {age_text(row.purge_t - now)}" if row.purge_t > now else "due"
        table.add_row(
            *(str(row.step), age_text(now - sight.t), format_size(sight.bytes), str(sight.files), layout),
            *(_verified(row, now), TIER, purge, "; ".join(_notes(row))),
        )
    if local is not None:
        on = f"newest on the disks of {fold(local.nodes)}"
        table.add_row(str(local.step), age_text(now - local.t), "", "", "", "", "local", "", on)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=PIPED_WIDTH)
    console.print(table)


def _verified(row: Row, now: float) -> str:
    from slurmtrain.cli.ckpt_facts import age_text

    if row.sight.problem:
        return "no"
    if row.verified is None:
        return "sizes"
    return f"{row.verified.policy}, {age_text(now - row.verified.t)} ago" if row.verified.good else "no"


def _notes(row: Row) -> list[str]:
    from slurmtrain.errors import one_line

    notes = [f"set aside: {one_line(row.why, 100)}" if row.why else "set aside"] if row.aside else []
    notes += ["newest durable"] if row.durable else []
    notes += ["in use"] if row.in_use else []
    notes += ["goes next"] if row.goes_next else []
    notes += [one_line(row.sight.problem, 100)] if row.sight.problem else []
    if row.verified and not row.verified.good and not row.sight.problem:
        notes.append("its bytes are not those that were written: slurmtrain ckpt verify tells which")
    return notes
