"""`slurmtrain ckpt show`: what is in a checkpoint, from its manifest alone."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.doors import doors_of
from slurmtrain.cli.options import examples, root_option

if TYPE_CHECKING:
    from slurmtrain.cli.ckpt_facts import Sight
    from slurmtrain.cli.ckpt_names import Named
    from slurmtrain.store.manifest import Manifest, TensorEntry

KINDS = ("model", "optimizer", "ema", "rng")
"""First parts of tensors' names, in the order in which they are shown."""
_APART = {"v", "job", "versions"}
"""Of the state: shown on lines of their own."""


@click.command(
    "show",
    short_help="Show what is in a checkpoint.",
    epilog=examples(
        "slurmtrain ckpt show my-run", "slurmtrain ckpt show my-run@300 --tensors", "slurmtrain ckpt show /archive/step-00000300"
    ),
)
@click.argument("name", metavar="RUN[@STEP]|DIR")
@click.option("--tensors", is_flag=True, help="Every tensor with its type, its shape and the boxes that it lies in.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@root_option
@click.pass_context
def command(ctx: click.Context, name: str, root: Path | None, *, tensors: bool, as_json: bool) -> None:
    """Show what is in a checkpoint (default: the run's newest) and who wrote it; its tensors are not read."""
    from slurmtrain.cli.ckpt_facts import look
    from slurmtrain.cli.ckpt_names import checkpoint_named
    from slurmtrain.store.verify import read_manifest

    doors = doors_of(ctx)
    named = checkpoint_named(name, root, doors)
    sight = look(named.folder)
    manifest = sight.manifest or read_manifest(named.folder)  # raises what is wrong with it
    told = told_of(named, sight, manifest)
    if tensors:
        told["tensors"] = {one: _tensor(entry) for one, entry in manifest.tensors.items()}
    if as_json:
        click.echo(json.dumps(told))
        return
    for label, text in _lines(told, doors.clock.time()):
        click.echo(f"{label:<11} {text}".rstrip())
    for one, entry in manifest.tensors.items() if tensors else ():
        click.echo(f"{one}  {entry.dtype} {list(entry.shape)}")
        for stored in entry.boxes:
            click.echo(f"    {list(stored.box.offset)} {list(stored.box.shape)} in {stored.file}")


def told_of(named: Named, sight: Sight, manifest: Manifest) -> dict[str, Any]:
    """The object of `show --json`. Raises CorruptCheckpointError for an entry of the index that is none."""
    from slurmtrain.cli.ckpt_facts import purge_days_of, purge_time
    from slurmtrain.store.manifest import MANIFEST_NAME

    config = manifest.state.get("job")
    return {
        "v": 1,
        "run": named.run.name if named.run else None,
        "path": str(named.folder),
        "step": manifest.step,
        "tokens": manifest.tokens,
        "t": sight.t,
        "attempt": manifest.attempt,
        "bytes": manifest.total_bytes,
        "manifest_bytes": (named.folder / MANIFEST_NAME).stat().st_size,
        "files": {name: one.size for name, one in manifest.files.items()},
        "problem": sight.problem,
        "layout": dict(manifest.layout),
        "versions": _versions(named, manifest),
        "config_sha256": digest_of(config) if isinstance(config, Mapping) else None,
        "config_changed": _changed(named, config),
        "state": {key: value for key, value in manifest.state.items() if key not in _APART},
        "purge_t": purge_time(sight, purge_days_of(named.run)),
        "kinds": kinds_of(manifest),
    }


def digest_of(config: Mapping[str, Any]) -> str:
    """sha256 of a configuration as JSON with sorted keys and no blanks."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def kinds_of(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Kind to number of tensors, of elements, of bytes, and number of tensors of each element type."""
    from slurmtrain.checkpoint.dtypes import carrier

    found: dict[str, dict[str, Any]] = {}
    for name, entry in manifest.tensors.items():
        kind = found.setdefault(name.partition("/")[0], {"tensors": 0, "elements": 0, "bytes": 0, "dtypes": Counter()})
        elements = _elements(entry)
        kind["tensors"] += 1
        kind["elements"] += elements
        kind["bytes"] += elements * carrier(entry.dtype).itemsize
        kind["dtypes"][entry.dtype] += 1
    order = [*(kind for kind in KINDS if kind in found), *sorted(found.keys() - set(KINDS))]
    return {kind: {**found[kind], "dtypes": dict(found[kind]["dtypes"].most_common())} for kind in order}


def _elements(entry: TensorEntry) -> int:
    from math import prod

    return prod(entry.shape)


def _tensor(entry: TensorEntry) -> dict[str, Any]:
    boxes = [{"offset": one.box.offset, "shape": one.box.shape, "file": one.file, "at": one.at} for one in entry.boxes]
    return {"dtype": entry.dtype, "shape": entry.shape, "boxes": boxes}


def _versions(named: Named, manifest: Manifest) -> dict[str, str]:
    """Those that the checkpoint tells, else those of the attempt that wrote it."""
    from slurmtrain.resilience.records import read_attempt

    told = manifest.state.get("versions")
    if isinstance(told, Mapping):
        return {str(name): str(version) for name, version in told.items()}
    record = read_attempt(named.run, manifest.attempt) if named.run else None
    if record is None:
        return {}
    return {name: text for name, text in {"slurmtrain": record.slurmtrain, "python": record.python, **record.packages}.items() if text}


def _changed(named: Named, config: Any) -> list[str] | None:
    """What the run's job.json of today says otherwise, one phrase each; None where one of the two is not there."""
    from slurmtrain.cli.facts import config_of
    from slurmtrain.config.changes import differences, stored

    now = config_of(named.run) if named.run else None
    if now is None or not isinstance(config, Mapping):
        return None
    return [str(one) for one in differences(config, stored(now))]


def _lines(told: Mapping[str, Any], now: float) -> Iterator[tuple[str, str]]:
    """(label, text) for people."""
    from slurmtrain.cli.ckpt_facts import layout_text, when_text
    from slurmtrain.units import counted, format_count, format_size

    yield "checkpoint", told["path"]
    yield "run", told["run"] or "none: a folder by itself"
    yield "step", str(told["step"])
    yield "tokens", f"{told['tokens']} ({format_count(told['tokens'])})"
    yield "written", f"{when_text(told['t'], now)}, by attempt {told['attempt']}"
    yield "size", f"{format_size(told['bytes'])} in {counted(len(told['files']), 'file')}, manifest {format_size(told['manifest_bytes'])}"
    yield "files", told["problem"] or "all there, of the right sizes (slurmtrain ckpt verify compares their bytes)"
    if text := layout_text(told["layout"]):
        world = told["layout"].get("world")
        yield "layout", text if world is None or text.startswith(f"{world} ") else f"{text} (world {world})"
    yield "versions", ", ".join(f"{name} {version}" for name, version in told["versions"].items()) or "not told"
    yield "config", _config(told)
    yield "state", ", ".join(f"{key} {_short(value)}" for key, value in told["state"].items()) or "none"
    if told["purge_t"] is not None:
        yield "purged", f"{when_text(told['purge_t'], now)} if nobody touches its files"
    for kind, one in told["kinds"].items():
        types = ", ".join(f"{count} {dtype}" for dtype, count in one["dtypes"].items())
        counts = f"{counted(one['tensors'], 'tensor')} of {format_count(one['elements'])} elements"
        yield kind, f"{counts}, {format_size(one['bytes'])}: {types}"


def _config(told: Mapping[str, Any]) -> str:
    if told["config_sha256"] is None:
        return "not told"
    changed = told["config_changed"]
    now = "" if changed is None else " as job.json" if not changed else f"; job.json of today: {', '.join(changed[:4])}"
    return f"sha256 {told['config_sha256'][:16]}{now}{' ...' if changed and len(changed) > 4 else ''}"


def _short(value: Any) -> str:
    from slurmtrain.errors import one_line

    return one_line(value if isinstance(value, str) else json.dumps(value), 120)
