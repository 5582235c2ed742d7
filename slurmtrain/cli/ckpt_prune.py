"""`slurmtrain ckpt prune`: old checkpoints go, by the job's own rules or others."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.ckpt_verify import POLICIES
from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import examples, root_option

if TYPE_CHECKING:
    from slurmtrain.rundir import RunDir
    from slurmtrain.store.aside import Aside
    from slurmtrain.store.retention import RetentionPolicy
    from slurmtrain.store.verify import Policy

_RULES = ("keep", "keep_every_steps", "keep_every_hours", "keep_best", "best_metric")


@click.command(
    "prune",
    short_help="Remove old checkpoints.",
    epilog=examples("slurmtrain ckpt prune my-run --dry-run", "slurmtrain ckpt prune my-run --keep 1 --keep-every-steps 1000 --yes"),
)
@click.argument("name", metavar="RUN|JOBID")
@click.option("--keep", type=click.IntRange(min=1), default=None, metavar="N", help="The newest that stay.")
@click.option("--keep-every-steps", type=click.IntRange(min=0), default=None, metavar="N", help="Multiples of it stay; 0: no such rule.")
@click.option(
    "--keep-every-hours", type=click.FloatRange(min=0), default=None, metavar="H", help="The newest of each such span; 0: no rule."
)
@click.option("--keep-best", type=click.IntRange(min=0), default=None, metavar="N", help="The lowest of --best-metric.")
@click.option("--best-metric", default=None, metavar="NAME", help="An evaluation set, or loss.")
@click.option("--aside", is_flag=True, help="Those that were set aside go, too.")
@click.option("--policy", type=POLICIES, default="sampled", show_default=True, help="How the newest is verified before others go.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@root_option
@click.pass_context
def command(ctx: click.Context, /, name: str, root: Path | None, **said: Any) -> None:
    """Remove old checkpoints of a run. What no option says is as the run's job has it.

    The newest that verifies never goes, nor one that somebody reads just now.
    """
    from slurmtrain.cli.ckpt_names import steps_of
    from slurmtrain.cli.facts import locate
    from slurmtrain.units import counted, format_size

    doors = doors_of(ctx)
    run = locate(name, root, doors)
    asides = _asides(run) if said["aside"] else []
    if not asides:
        steps_of(run)
    going = _going(run, _policy(run, said), said["policy"], doors)
    folders = [*(run.checkpoint(step) for step in going), *(one.folder for one in asides)]
    if not folders:
        click.echo(f"run {run.name}: nothing to remove")
        return
    sizes = {folder: _size(folder) for folder in folders}
    for folder, size in sizes.items():
        click.echo(f"{folder.name}  {format_size(size)}")
    total = f"{counted(len(folders), 'checkpoint')}, {format_size(sum(sizes.values()))}"
    if said["dry_run"]:
        click.echo(f"run {run.name}: would remove {total}")
        return
    _ask(f"run {run.name}: remove {total}?", yes=said["yes"])
    problems = _remove(run, going, asides, doors)
    for problem in problems:
        click.echo(f"slurmtrain: {problem}", err=True)
    gone = [folder for folder in folders if not folder.exists()]
    click.echo(f"run {run.name}: removed {counted(len(gone), 'checkpoint')}, {format_size(sum(sizes[one] for one in gone))}")
    ctx.exit(1 if problems else 0)


def _policy(run: RunDir, said: Mapping[str, Any]) -> RetentionPolicy:
    """The job's rules, each as an option says where one does. Raises ConfigError."""
    from slurmtrain.cli.ckpt_retention import policy_of
    from slurmtrain.config.stored import read_job
    from slurmtrain.errors import UserError

    rules = {rule: said[rule] for rule in _RULES if said[rule] is not None}
    config = read_job(run.job_json).checkpoint
    config = config.model_copy(update={rule: value or None if rule.startswith("keep_every") else value for rule, value in rules.items()})
    if config.keep_best and config.best_metric is None:
        raise UserError("--keep-best needs --best-metric, the name of an evaluation set, or loss")
    return policy_of(config)


def _going(run: RunDir, rules: RetentionPolicy, policy: Policy, doors: Doors) -> list[int]:
    """Steps that go, oldest first. Raises CheckpointError where there are some and none verifies, OSError."""
    from slurmtrain.store.leases import leased
    from slurmtrain.store.listing import newest_verified
    from slurmtrain.store.retention import kept, to_remove
    from slurmtrain.store.verify import sum_problems

    there, used = kept(run, manifests=rules.needs_manifests), leased(run, doors.clock.time())
    if not there or not to_remove(there, rules, durable=there[-1].step, leased=used):
        return []  # nothing would go, whichever verifies: an older one holds more back
    found = newest_verified(run.checkpoints, lambda folder, manifest: sum_problems(folder, manifest, policy=policy))
    assert found is not None
    for step, why in found.passed_over:
        click.echo(f"note: the checkpoint of step {step} does not verify and stays: {why}", err=True)
    return to_remove(there, rules, durable=found.step, leased=used)


def _asides(run: RunDir) -> list[Aside]:
    from slurmtrain.store.aside import asides

    return asides(run)


def _size(folder: Path) -> int:
    """Of its files; 0 for a folder that another removes meanwhile."""
    try:
        return sum(path.stat().st_size for path in folder.iterdir())
    except OSError:
        return 0


def asked_here() -> bool:
    """Whether somebody can answer."""
    return sys.stdin.isatty()


def _ask(question: str, *, yes: bool) -> None:
    """Raises click.Abort for a no, UserError where nobody can be asked."""
    from slurmtrain.errors import UserError

    if yes:
        return
    if not asked_here():
        raise UserError(f"{question} nobody can be asked here: give --yes, or --dry-run to look")
    click.confirm(question, abort=True)


def _remove(run: RunDir, steps: Sequence[int], asides: Sequence[Aside], doors: Doors) -> list[str]:
    from slurmtrain.store.retention import remove
    from slurmtrain.syscalls import SYSTEM, remove_tree

    problems = remove(run, steps, clock=doors.clock)
    for one in asides:
        try:
            remove_tree(SYSTEM, one.folder)
        except OSError as error:
            problems.append(f"{one.folder}: not removed: {error.strerror or error}")
    return problems
