"""`slurmtrain ckpt diff`: two checkpoints compared tensor by tensor, whatever their layouts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.batch import batch_options, ended_by_sigterm, output_beside, sent_to_batch
from slurmtrain.cli.ckpt_show import KINDS
from slurmtrain.cli.ckpt_verify import POLICIES
from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import examples, root_option

if TYPE_CHECKING:
    from slurmtrain.checkpoint.diff import TensorDiff
    from slurmtrain.cli.ckpt_names import Named
    from slurmtrain.store.manifest import Manifest
    from slurmtrain.store.verify import Policy

MOST_LINES = 40
"""Tensors told one by one without --all."""


@click.command(
    "diff",
    short_help="Compare two checkpoints, tensor by tensor.",
    epilog=examples("slurmtrain ckpt diff my-run@300 again@300", "slurmtrain ckpt diff my-run@300 again@300 --only model,optimizer --json"),
)
@click.argument("names", metavar="A[@STEP]|DIR B[@STEP]|DIR", nargs=2)
@click.option("--only", default=None, metavar="KINDS", help=f"Of {', '.join(KINDS)}, with commas between [default: all tensors].")
@click.option("--all", "every", is_flag=True, help=f"Tell of every tensor that differs, not of {MOST_LINES}.")
@click.option("--policy", type=POLICIES, default="full", show_default=True, help="How much of what is read is compared with its sums.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every tensor that differs.")
@root_option
@batch_options
@click.pass_context
def command(ctx: click.Context, /, names: tuple[str, str], root: Path | None, **said: Any) -> None:
    """Compare two checkpoints tensor by tensor: bits, and the largest absolute and relative difference of values.

    Layouts do not matter. Exit code 0: every tensor is the same bit for bit, 1: something differs, 2: trouble. Step, tokens and plain
    values are told where they differ, but do not count: clocks go on.
    """
    from slurmtrain.cli.ckpt_names import checkpoint_named
    from slurmtrain.errors import EXIT_USER, CheckpointError

    doors = doors_of(ctx)
    a, b = (checkpoint_named(name, root, doors) for name in names)
    passes = _passes(said["only"])
    again = ["ckpt", "diff", str(a.folder), str(b.folder), *_again(said)]
    if sent_to_batch(ctx, said, again, output=output_beside(Path(f"{a.file_name}-{b.file_name}"), "diff")):
        return
    try:
        with ended_by_sigterm():
            told, differing = _compared(a, b, passes, said["policy"], doors)
    except CheckpointError as error:
        error.exit_code = EXIT_USER  # as of diff(1): 1 means that they differ
        raise
    if said["as_json"]:
        click.echo(json.dumps({**told, "differing": [_to_json(one) for one in differing]}))
    else:
        _print(told, differing, most=len(differing) if said["every"] else MOST_LINES)
    ctx.exit(1 if differing else 0)


def _again(said: Mapping[str, Any]) -> list[str]:
    words = [f"--policy={said['policy']}", *([f"--only={said['only']}"] if said["only"] else [])]
    return [*words, *(["--all"] if said["every"] else []), *(["--json"] if said["as_json"] else [])]


def _passes(only: str | None) -> Callable[[str], bool]:
    """Which names of tensors are compared. Raises UserError for a kind that is none."""
    from slurmtrain.errors import UserError

    if only is None:
        return lambda _: True
    kinds = set(only.split(","))
    if strange := sorted(kinds - set(KINDS)):
        raise UserError(f"--only {only}: {strange[0]!r} is no kind of tensor: there are {', '.join(KINDS)}")
    return lambda name: name.partition("/")[0] in kinds


def _compared(a: Named, b: Named, passes: Callable[[str], bool], policy: Policy, doors: Doors) -> tuple[dict[str, Any], list[TensorDiff]]:
    """What `--json` tells but for the tensors that differ, and these."""
    from slurmtrain.checkpoint.diff import bytes_of, compare
    from slurmtrain.cli.bars import bar
    from slurmtrain.cli.ckpt_lease import kept_while_read
    from slurmtrain.errors import UserError

    with kept_while_read(a, "ckpt diff", doors), kept_while_read(b, "ckpt diff", doors):
        left, right = _whole(a), _whole(b)
        with bar("comparing", bytes_of(left, passes), sizes=True) as advance:
            found = compare((a.folder, left), (b.folder, right), passes, policy=policy, advance=advance)
    if not found:
        raise UserError(f"neither {a} nor {b} holds such a tensor: nothing was compared")
    differing = [one for one in found if not one.identical]
    both = [one for one in found if one.comparable]
    told = {
        "v": 1,
        "a": str(a.folder),
        "b": str(b.folder),
        "identical": not differing,
        "tensors": len(found),
        "equal": len(found) - len(differing),
        "max_abs": _number(max((one.apart.max_abs for one in both), default=0.0)),
        "max_rel": _number(max((one.apart.max_rel for one in both), default=0.0)),
        "lone_nans": sum(one.apart.lone_nans for one in both),
        "state": _state(left, right),
    }
    return told, differing


def _whole(named: Named) -> Manifest:
    """Its manifest, of which names and sizes are right. Raises CheckpointError."""
    from slurmtrain.errors import CorruptCheckpointError
    from slurmtrain.store.listing import summary
    from slurmtrain.store.verify import cheap_problems, read_manifest

    manifest = read_manifest(named.folder)
    if problems := cheap_problems(named.folder, manifest):
        raise CorruptCheckpointError(f"{named.folder}: {summary(problems)}")
    return manifest


def _state(a: Manifest, b: Manifest) -> dict[str, list[Any]]:
    """Plain values that differ, by dotted name: [of a, of b], null where there is none; in one piece what one side has nothing of."""
    from slurmtrain.config.changes import differences

    left, right = ({"step": one.step, "tokens": one.tokens, **one.state} for one in (a, b))
    alone = {key: [left.pop(key, None), right.pop(key, None)] for key in [*left, *right] if (key in left) != (key in right)}
    told = {one.key: [one.before, one.after] for one in differences(left, right)}
    return told | {key: pair for key, pair in alone.items() if pair != [None, None]}


def _number(value: float) -> float | str:
    """As JSON has it: what is not finite travels as text."""
    return value if math.isfinite(value) else str(value)


def _to_json(one: TensorDiff) -> dict[str, Any]:
    apart = one.apart
    return {
        "name": one.name,
        "dtypes": one.dtypes,
        "shapes": one.shapes,
        "differing": apart.differing,
        "max_abs": _number(apart.max_abs),
        "max_rel": _number(apart.max_rel),
        "at": one.at,
        "lone_nans": apart.lone_nans,
    }


def _print(told: Mapping[str, Any], differing: Sequence[TensorDiff], *, most: int) -> None:
    for one in differing[:most]:
        click.echo(f"{one.name}  {difference(one)}")
    if len(differing) > most:
        click.echo(f"... and {len(differing) - most} more (--all)")
    for key, (left, right) in told["state"].items():
        click.echo(f"note: {key} {_short(left)} / {_short(right)}", err=True)
    if not differing:
        click.echo(f"identical: {told['tensors']} tensors, bit for bit")
        return
    nans = f", {told['lone_nans']} elements NaN on one side" if told["lone_nans"] else ""
    apart = f"max abs {float(told['max_abs']):.6g}, max rel {float(told['max_rel']):.6g}{nans}"
    click.echo(f"different: {len(differing)} of {told['tensors']} tensors; {apart}")
    if all(one.name.startswith("rng/") for one in differing):
        click.echo("note: random states belong to places of a layout: --only model,optimizer,ema compares the others", err=True)


def difference(one: TensorDiff) -> str:
    """In words what differs."""
    from math import prod

    if None in one.shapes:
        return f"only in {'B' if one.shapes[0] is None else 'A'}"
    if not one.comparable:
        return f"shape {list(one.shapes[0] or ())} / {list(one.shapes[1] or ())}"
    apart, shape = one.apart, one.shapes[0] or ()
    words = [] if one.dtypes[0] == one.dtypes[1] else [f"type {one.dtypes[0]} / {one.dtypes[1]}"]
    if apart.differing:
        at = f" at {list(one.at)}" if one.at is not None else ""
        words.append(f"{apart.differing} of {prod(shape)} elements, max abs {apart.max_abs:.6g}{at}, max rel {apart.max_rel:.6g}")
    else:
        words.append("the same values")
    if apart.lone_nans:
        words.append(f"{apart.lone_nans} NaN on one side")
    return ", ".join(words)


def _short(value: Any) -> str:
    from slurmtrain.errors import one_line

    return one_line(json.dumps(value), 60)
