"""`slurmtrain weights`: models of Hugging Face's format out of runs, and what a folder of them holds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.batch import batch_options, ended_by_sigterm, output_beside, sent_to_batch
from slurmtrain.cli.doors import doors_of
from slurmtrain.cli.options import examples, root_option
from slurmtrain.cli.paths import UserPath
from slurmtrain.errors import ConfigError, UserError
from slurmtrain.units import counted, parse_size

if TYPE_CHECKING:
    from slurmtrain.config.model import ModelConfig


@click.group(epilog=examples("slurmtrain weights export my-run --out my-model", "slurmtrain weights show my-model"))
def command() -> None:
    """Export a run's weights for transformers, or show what a folder or a run holds."""


@command.command(
    short_help="Write a checkpoint as safetensors that transformers reads.",
    epilog=examples("slurmtrain weights export my-run --out my-model --dtype bf16"),
)
@click.argument("name", metavar="RUN")
@click.option("--out", required=True, type=UserPath(), metavar="DIR", help="Folder to make.")
@click.option("--step", type=int, default=None, metavar="N", help="Checkpoint [default: the newest that verifies].")
@click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True, help="Of every tensor.")
@click.option("--max-shard-size", default="5GB", show_default=True, metavar="SIZE", help="Of one file; a larger tensor is alone in one.")
@click.option("--ema", is_flag=True, help="The moving average of the weights, where the run keeps one.")
@root_option
@batch_options
@click.pass_context
def export(ctx: click.Context, /, name: str, out: Path, root: Path | None, **options: Any) -> None:
    """Write the weights of a run as a folder of safetensors with config.json, which transformers and others read."""
    from slurmtrain.checkpoint.hf_export import check_export
    from slurmtrain.checkpoint.hf_export import export as write
    from slurmtrain.cli.facts import locate
    from slurmtrain.config.stored import read_job
    from slurmtrain.units import format_size

    doors = doors_of(ctx)
    run = locate(name, root, doors)
    max_bytes = _bytes_of(options["max_shard_size"])
    job = read_job(run.job_json)
    check_export(run, job, out, step=options["step"], dtype=options["dtype"])
    if sent_to_batch(ctx, options, ["weights", "export", str(run.path), *_again(out, options)], output=output_beside(out, "weights")):
        return
    options.pop("max_shard_size")
    with ended_by_sigterm():
        done = write(run, job, out, disk=doors.disk, max_bytes=max_bytes, **options)
    for number, why in done.passed_over:
        click.echo(f"note: the checkpoint of step {number} was passed over: {why}", err=True)
    click.echo(f"step     {done.step}{' (moving average)' if options['ema'] else ''}")
    click.echo(f"tensors  {done.tensors}, {options['dtype']}, {format_size(done.bytes)} in {counted(done.shards, 'file')}")
    if done.beside:
        click.echo(f"beside   {', '.join(done.beside)}")
    click.echo(f"folder   {out}")


def _again(out: Path, options: dict[str, Any]) -> Iterator[str]:
    """The command's own options as words, for a job that does the same."""
    yield f"--out={os.path.abspath(out)}"  # noqa: PTH100 links stay
    for name in ("step", "dtype", "max_shard_size"):
        if options[name] is not None:
            yield f"--{name.replace('_', '-')}={options[name]}"
    if options["ema"]:
        yield "--ema"


def _bytes_of(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError:
        size = 0
    if size < 1:
        raise ConfigError("must be a size such as 5GB", key="--max-shard-size", value=text)
    return size


@command.command(
    short_help="Show shape and parameters of a folder or a run.",
    epilog=examples("slurmtrain weights show Llama-3.2-1B", "slurmtrain weights show my-run"),
)
@click.argument("name", metavar="DIR|RUN")
@root_option
@click.pass_context
def show(ctx: click.Context, name: str, root: Path | None) -> None:
    """Show parameters and element types of a folder of safetensors, or of a run, and the [model] table that a job file would say."""
    try:
        for line in _shown(ctx, name, root):
            click.echo(line)
    except PermissionError as error:
        raise UserError(f"{error.filename or name}: {error.strerror}") from error


def _shown(ctx: click.Context, name: str, root: Path | None) -> Iterator[str]:
    """A path is a folder or a run's; a word is a run's name or job id before it is a folder without config.json."""
    from slurmtrain.cli.runs import is_run
    from slurmtrain.config.hf import CONFIG_NAME

    path = Path(name)
    if (path / CONFIG_NAME).is_file() or ("/" in name and not is_run(path)):
        yield from _of_folder(path)
        return
    try:
        yield from _of_run(ctx, name, root)
    except UserError as error:
        if path.exists():
            yield from _of_folder(path)
        raise UserError(f"{name}: no folder of weights; nor a run: {error}") from error


def _of_folder(folder: Path) -> Iterator[str]:
    """Raises ConfigError at the end where the tensors are not those of the model."""
    from slurmtrain.checkpoint.hf_check import check_weights, stored_tensors
    from slurmtrain.config.hf import model_of
    from slurmtrain.config.weights import shards

    model = model_of(folder)
    kinds = Counter(one.dtype for one in stored_tensors(folder).values())
    types = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    yield from _summary(model, f"{types} in {counted(len(shards(folder)), 'file')}")
    yield from _table(model)
    check_weights(folder, model)


def _of_run(ctx: click.Context, name: str, root: Path | None) -> Iterator[str]:
    from slurmtrain.cli.facts import locate
    from slurmtrain.config.stored import read_job
    from slurmtrain.store.listing import newest_durable_step
    from slurmtrain.store.verify import read_manifest

    run = locate(name, root, doors_of(ctx))
    step = newest_durable_step(run.checkpoints)
    if step is None:
        held = "no checkpoint yet"
    else:
        tensors = read_manifest(run.checkpoint(step)).tensors
        kinds = sorted({entry.dtype for name, entry in tensors.items() if name.startswith("model/")})
        average = ", with a moving average" if any(name.startswith("ema/") for name in tensors) else ""
        held = f"{', '.join(kinds)} in the checkpoint of step {step}{average}"
    model = read_job(run.job_json).model
    yield from _summary(model, held)
    yield from _table(model)


def _summary(model: ModelConfig, held: str) -> Iterator[str]:
    from slurmtrain.units import format_count

    count = model.parameters()
    yield f"# family      {model.family}"
    yield f"# parameters  {count} ({format_count(count)})"
    yield f"# tensors     {held}"


def _table(model: ModelConfig) -> Iterator[str]:
    """The lines of [model] that say this shape: what differs from the defaults, and all that has none."""
    from slurmtrain.cli.site import toml_lines

    values: dict[str, Any] = model.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude={"preset", "weights"})
    yield from toml_lines({"model": values})
