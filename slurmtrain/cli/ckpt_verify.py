"""`slurmtrain ckpt verify`: the bytes of checkpoints compared with the sums that were taken when they were written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.batch import batch_options, ended_by_sigterm, output_beside, sent_to_batch
from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import examples, root_option

if TYPE_CHECKING:
    from slurmtrain.cli.ckpt_names import Named
    from slurmtrain.store.verify import Policy

POLICIES = click.Choice(["full", "sampled", "sizes"])


@click.command(
    "verify",
    short_help="Compare a checkpoint's bytes with their sums.",
    epilog=examples("slurmtrain ckpt verify my-run", "slurmtrain ckpt verify my-run --all --policy sampled --batch -t 2h"),
)
@click.argument("name", metavar="RUN[@STEP]|DIR")
@click.option("--all", "every", is_flag=True, help="Every checkpoint of the run, the newest first.")
@click.option(
    "--policy", type=POLICIES, default="full", show_default=True, help="All bytes; every 8th piece of 8 MiB, the first and the last; none."
)
@root_option
@batch_options
@click.pass_context
def command(ctx: click.Context, /, name: str, root: Path | None, every: bool, policy: Policy, **said: Any) -> None:
    """Compare the bytes of a checkpoint (default: the run's newest) with the sums that were taken when they were written.

    Every problem is told with its file and tensor. Exit code 0: all is as it was written, 1: something is not.
    """
    doors = doors_of(ctx)
    chosen = list(_chosen(name, root, doors, every=every))
    again = ["ckpt", "verify", str(chosen[0].run.path if every and chosen[0].run else chosen[0].folder), f"--policy={policy}"]
    again += ["--all"] if every else []
    if sent_to_batch(ctx, said, again, output=output_beside(Path(chosen[0].file_name), "verify")):
        return
    with ended_by_sigterm():
        wrong = sum([not _good(named, policy, doors) for named in chosen])
    if every:
        click.echo(f"{len(chosen) - wrong} of {len(chosen)} are as they were written")
    ctx.exit(1 if wrong else 0)


def _chosen(name: str, root: Path | None, doors: Doors, *, every: bool) -> Iterator[Named]:
    from slurmtrain.cli.ckpt_names import Named, checkpoint_named, run_at_step, steps_of
    from slurmtrain.cli.facts import locate
    from slurmtrain.errors import UserError

    if not every:
        yield checkpoint_named(name, root, doors)
        return
    word, step = run_at_step(name)
    if step is not None:
        raise UserError(f"{name}: --all means every checkpoint of the run: leave out @{step}, or --all")
    run = locate(word, root, doors)
    for one in reversed(steps_of(run)):
        yield Named(run.checkpoint(one), run, one)


def _good(named: Named, policy: Policy, doors: Doors) -> bool:
    """Compare, tell, and let the history remember it."""
    from slurmtrain.checkpoint.damage import damage, strangers
    from slurmtrain.cli.bars import bar
    from slurmtrain.cli.ckpt_lease import kept_while_read
    from slurmtrain.errors import CheckpointError
    from slurmtrain.store.verify import read_manifest
    from slurmtrain.units import counted, format_size

    begin = doors.clock.monotonic()
    try:
        with kept_while_read(named, "ckpt verify", doors):
            manifest = read_manifest(named.folder)
            with bar(f"verifying {named}", manifest.total_bytes, sizes=True) as advance:
                problems = damage(named.folder, manifest, policy, advance)
            foreign = strangers(named.folder, manifest)
    except CheckpointError as error:
        problems, held, foreign = [str(error)], "", []
    else:
        held = f": {counted(len(manifest.files), 'file')}, {format_size(manifest.total_bytes)}"
    _remember(named, policy, doors, good=not problems)
    for problem in problems:
        click.echo(f"{named}: {problem}")
    for name in foreign:
        click.echo(f"note: {named.folder / name} is none of its files", err=True)
    if not problems:
        click.echo(f"{named}: as it was written ({policy}){held}, {doors.clock.monotonic() - begin:.1f} s")
    return not problems


def _remember(named: Named, policy: Policy, doors: Doors, *, good: bool) -> None:
    from slurmtrain.cli.ckpt_facts import VERIFIED
    from slurmtrain.telemetry.history import add_act

    if named.run is None or (policy == "sizes" and good):
        return
    with suppress(OSError):  # another's run: nothing to be said
        add_act(named.run, doors.disk, doors.clock.time(), VERIFIED, detail=f"{named.folder.name} {policy} {'good' if good else 'bad'}")
