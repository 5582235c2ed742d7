"""`slurmtrain ckpt reshard | to-dcp | from-dcp | import | export`: checkpoints in other files and other formats."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli import weights
from slurmtrain.cli.batch import batch_options, ended_by_sigterm, output_beside, sent_to_batch
from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import F, examples, root_option, with_options
from slurmtrain.cli.paths import UserPath
from slurmtrain.errors import ConfigError, CorruptCheckpointError, UserError

if TYPE_CHECKING:
    from slurmtrain.checkpoint.cuts import Sizing
    from slurmtrain.checkpoint.expected import Expected
    from slurmtrain.checkpoint.making import Made
    from slurmtrain.cli.ckpt_names import Named
    from slurmtrain.cli.ckpt_place import Place
    from slurmtrain.config.job import JobConfig
    from slurmtrain.store.manifest import Manifest

_WIDE: dict[str, Any] = {"max_content_width": 110}
_DEST = click.option("--out", "dest", required=True, metavar="DEST", help="A run, or a folder in which step-NNNNNNNN is made.")
_RUN = click.option("--out", "dest", required=True, metavar="DEST", help="A run, or a new folder, which becomes one.")
_OUT = click.option("--out", required=True, type=UserPath(), metavar="DIR", help="Folder to make.")
_JOB_HELP = "Job file that says the model."
_SIZING: tuple[Callable[[Any], Any], ...] = (
    click.option("--files", type=click.IntRange(min=1), default=None, metavar="N", help="How many files, of about the same size."),
    click.option("--max-file-size", default=None, metavar="SIZE", help="Of one file's tensors [default: 5GB, without --files]."),
)


def _sizing_options(function: F) -> F:
    return with_options(_SIZING)(function)


@click.command(
    context_settings=_WIDE,
    short_help="Write a checkpoint again, in another number of files.",
    epilog=examples(
        "slurmtrain ckpt reshard my-run@3000 --out /archive/my-run --files 8",
        "slurmtrain ckpt reshard my-run --out ./moved --max-file-size 50GB --batch -t 1h",
    ),
)
@click.argument("name", metavar="RUN[@STEP]|DIR")
@_DEST
@_sizing_options
@click.option(
    "--weights-only", is_flag=True, help="Leave out all but the weights (and their moving average): it can start runs, not resume."
)
@root_option
@batch_options
@click.pass_context
def reshard(ctx: click.Context, /, name: str, dest: str, root: Path | None, **said: Any) -> None:
    """Write the same tensors, bit for bit, in another number of files: to move a checkpoint, or archive it.

    Training under another layout needs none of this: any layout loads any checkpoint. Every byte is compared with its sum on the way;
    the new checkpoint appears whole, by one rename, or not at all.
    """
    from slurmtrain.checkpoint.making import bytes_of, kinds_of
    from slurmtrain.checkpoint.rewrite import reshard as rewrite
    from slurmtrain.cli.bars import bar
    from slurmtrain.cli.ckpt_lease import kept_while_read
    from slurmtrain.cli.ckpt_names import checkpoint_named
    from slurmtrain.cli.ckpt_place import check_model, check_room, place_of

    doors, sizing = doors_of(ctx), _sizing(said)
    named = checkpoint_named(name, root, doors)
    manifest = _manifest_of(named)
    place = place_of(dest, manifest.step, root, doors)
    kinds = kinds_of(manifest)
    size = bytes_of(kinds)
    check_model(place, kinds, str(named))
    check_room(place.out, size, _most_files(sizing, size), place.run, doors)
    words = ["ckpt", "reshard", str(named.folder), f"--out={place.word}", *_again(said)]
    if sent_to_batch(ctx, said, words, output=_output(named.file_name, "reshard")):
        return
    with ended_by_sigterm(), kept_while_read(named, "ckpt reshard", doors), bar(f"rewriting {named}", size, sizes=True) as advance:
        made = rewrite(named.folder, manifest, place.out, sizing, advance=advance)
    _tell(made, place)


@click.command(
    "to-dcp",
    context_settings=_WIDE,
    short_help="Write a checkpoint in the format of torch.distributed.checkpoint.",
    epilog=examples("slurmtrain ckpt to-dcp my-run@3000 --out my-run-dcp --files 8"),
)
@click.argument("name", metavar="RUN[@STEP]|DIR")
@_OUT
@_sizing_options
@root_option
@batch_options
@click.pass_context
def to_dcp(ctx: click.Context, /, name: str, out: Path, root: Path | None, **said: Any) -> None:
    """Write a checkpoint as a folder that torch.distributed.checkpoint loads, under any number of processes.

    Weights are under model.<name>, moments under optimizer.state.<name>.exp_avg and so on, as torch's get_model_state_dict and
    get_optimizer_state_dict (flattened) name them; step and the other plain values are JSON under the key slurmtrain, as bytes.
    """
    from slurmtrain.checkpoint.making import bytes_of, kinds_of
    from slurmtrain.checkpoint.newfolder import check_out
    from slurmtrain.cli.bars import bar
    from slurmtrain.cli.ckpt_lease import kept_while_read
    from slurmtrain.cli.ckpt_names import checkpoint_named
    from slurmtrain.cli.ckpt_place import check_room
    from slurmtrain.units import counted, format_size

    doors, sizing = doors_of(ctx), _sizing(said)
    named = checkpoint_named(name, root, doors)
    manifest = _manifest_of(named)
    size = bytes_of(kinds_of(manifest))
    check_out(out)
    check_room(out, size, _most_files(sizing, size), named.run, doors)
    words = ["ckpt", "to-dcp", str(named.folder), f"--out={_absolute(out)}", *_again(said)]
    if sent_to_batch(ctx, said, words, output=output_beside(out, "to-dcp")):
        return
    from slurmtrain.checkpoint import dcp

    with ended_by_sigterm(), kept_while_read(named, "ckpt to-dcp", doors), bar(f"writing {named}", size, sizes=True) as advance:
        done = dcp.to_dcp(named.folder, manifest, out, sizing, advance=advance)
    click.echo(f"step     {manifest.step}")
    click.echo(f"tensors  {done.tensors}, {format_size(done.bytes)} in {counted(done.files, 'file')}")
    click.echo(f"folder   {out}")


@click.command(
    "from-dcp",
    context_settings=_WIDE,
    short_help="Make a checkpoint of a folder of torch.distributed.checkpoint.",
    epilog=examples(
        "slurmtrain ckpt from-dcp my-run-dcp --like my-run --out ./back",
        "slurmtrain ckpt from-dcp torch-run/step-500 --job job.toml --out ./start",
    ),
)
@click.argument("folder", metavar="DIR", type=UserPath())
@click.option("--like", default=None, metavar="RUN[@STEP]|DIR", help="Checkpoint that has the same tensors.")
@click.option("--job", type=UserPath(), default=None, metavar="JOB.toml", help=_JOB_HELP)
@_RUN
@_sizing_options
@click.option("--ignore", multiple=True, metavar="PATTERN", help="Leave out keys that fit, such as 'lr_scheduler.*'; repeatable.")
@root_option
@batch_options
@click.pass_context
def from_dcp(ctx: click.Context, /, folder: Path, dest: str, root: Path | None, **said: Any) -> None:
    """Make a checkpoint of a folder that torch.distributed.checkpoint wrote, whatever number of processes did.

    What `ckpt to-dcp` wrote comes back as it was. Of what torch alone wrote the weights are taken, as of step 0: nothing says how far
    the data was read. Names, shapes and element types must be those of --like or --job. No code in the folder is run.
    """
    from slurmtrain.checkpoint import dcp_read
    from slurmtrain.cli.bars import bar
    from slurmtrain.cli.ckpt_place import check_model, check_room, run_of

    doors, sizing = doors_of(ctx), _sizing(said)
    expected, its_job, like = _expected(said["like"], said["job"], root, doors)
    theirs = dcp_read.look(folder, expected, said["ignore"])
    place = run_of(dest, theirs.header.step, its_job, root, doors, resumes=theirs.resumes)
    check_model(place, theirs.kinds, str(folder))
    check_room(place.out, theirs.bytes, _most_files(sizing, theirs.bytes), place.run, doors)
    words = ["ckpt", "from-dcp", _absolute(folder), like, f"--out={place.word}", *_again(said)]
    if sent_to_batch(ctx, said, words, output=_output(folder.name, "from-dcp")):
        return
    with ended_by_sigterm(), bar(f"reading {folder.name}", theirs.bytes, sizes=True) as advance:
        made = _made(place, lambda out: dcp_read.take(theirs, out, sizing, t=doors.clock.time(), advance=advance))
    _tell(made, place)


@click.command(
    "import",
    context_settings=_WIDE,
    short_help="Make a checkpoint of Hugging Face weights.",
    epilog=examples("slurmtrain ckpt import --hf Llama-3.2-1B --job job.toml --out ./llama-start"),
)
@click.option("--hf", "folder", required=True, type=UserPath(), metavar="DIR", help="Folder of safetensors with config.json.")
@click.option("--job", required=True, type=UserPath(), metavar="JOB.toml", help=_JOB_HELP)
@_RUN
@_sizing_options
@root_option
@batch_options
@click.pass_context
def import_(ctx: click.Context, /, folder: Path, job: Path, dest: str, root: Path | None, **said: Any) -> None:
    """Make a checkpoint of step 0 that holds the weights of a folder, in fp32 and under our names.

    DEST becomes a run that has this checkpoint and never trains: model.weights = "run:DEST" starts others from it. (The folder itself
    does that, too; a checkpoint says by its sums that it is whole, and `ckpt diff` compares it.)
    """
    from slurmtrain.checkpoint import hf_import
    from slurmtrain.checkpoint.making import bytes_of
    from slurmtrain.cli.bars import bar
    from slurmtrain.cli.ckpt_place import check_room, run_of
    from slurmtrain.config.load import load_job

    doors, sizing = doors_of(ctx), _sizing(said)
    wanted = load_job(job, env=doors.env)
    try:
        note = hf_import.check_import(folder, wanted.model, where=str(job))
    except ConfigError as error:
        if error.key != "model.weights" or error.where:
            raise
        raise ConfigError(error.problem, key="--hf", value=str(folder)) from None
    place = run_of(dest, 0, wanted, root, doors, resumes=False)
    size = bytes_of(hf_import.imported_kinds(wanted.model))
    check_room(place.out, size, _most_files(sizing, size), place.run, doors)
    words = ["ckpt", "import", f"--hf={_absolute(folder)}", f"--job={_absolute(job)}", f"--out={place.word}", *_again(said)]
    if sent_to_batch(ctx, said, words, output=_output(folder.name, "import")):
        return
    with ended_by_sigterm(), bar(f"reading {folder.name}", size, sizes=True) as advance:
        made = _made(place, lambda out: hf_import.import_weights(folder, wanted.model, out, sizing, t=doors.clock.time(), advance=advance))
    _tell(made, place, note)


def _export(hf: bool, name: str, **said: Any) -> None:
    from slurmtrain.cli.ckpt_names import run_at_step

    if not hf:
        raise UserError("export to what? --hf writes Hugging Face's format (ckpt to-dcp writes PyTorch's)")
    run, step = run_at_step(name)
    if step is not None and said["step"] is not None:
        raise UserError(f"{name} says the step already: leave out --step")
    said["step"] = said["step"] if step is None else step
    assert weights.export.callback is not None
    weights.export.callback(name=run, **said)


export = click.Command(
    "export",
    callback=_export,
    params=[click.Option(["--hf"], is_flag=True, help="As safetensors that transformers reads."), *weights.export.params],
    help="Write the weights of a checkpoint in Hugging Face's format; the same as `weights export`.",
    short_help="Write the weights of a checkpoint for transformers.",
    epilog=examples("slurmtrain ckpt export --hf my-run@3000 --out my-model --dtype bf16"),
)

COMMANDS: list[click.Command] = [reshard, to_dcp, from_dcp, import_, export]


def _sizing(said: dict[str, Any]) -> Sizing:
    from slurmtrain.checkpoint.cuts import Sizing
    from slurmtrain.units import parse_size

    files, text = said["files"], said["max_file_size"]
    if files is not None and text is not None:
        raise UserError("--files and --max-file-size both say how many files there are: give one of them")
    if files is not None:
        return Sizing(files=files)
    try:
        most = parse_size("5GB" if text is None else text)
    except ValueError:
        most = 0
    if most < 1:
        raise ConfigError("must be a size such as 5GB", key="--max-file-size", value=text)
    return Sizing(most_bytes=most)


def _again(said: dict[str, Any]) -> list[str]:
    """The command's own options as words, for a job that does the same."""
    words = [f"--{name.replace('_', '-')}={said[name]}" for name in ("files", "max_file_size") if said[name] is not None]
    return [*words, *(f"--ignore={pattern}" for pattern in said.get("ignore", ()))]


def _most_files(sizing: Sizing, size: int) -> int:
    """Files that will be made, at most or about."""
    return 2 + (sizing.files or size // (sizing.most_bytes or 1))


def _manifest_of(named: Named) -> Manifest:
    """Its manifest; the files' names and sizes are right. Raises CheckpointError."""
    from slurmtrain.store.listing import summary
    from slurmtrain.store.verify import cheap_problems, read_manifest

    manifest = read_manifest(named.folder)
    if problems := cheap_problems(named.folder, manifest):
        raise CorruptCheckpointError(f"{named.folder}: {summary(problems)}")
    return manifest


def _expected(like: str | None, job: Path | None, root: Path | None, doors: Doors) -> tuple[Expected, JobConfig | None, str]:
    """What --like or --job says, the job where it is known, and the option again, with an absolute path."""
    from slurmtrain.checkpoint.expected import of_checkpoint, of_job
    from slurmtrain.cli.ckpt_names import checkpoint_named
    from slurmtrain.config.load import load_job
    from slurmtrain.config.stored import read_job

    if like is not None and job is None:
        named = checkpoint_named(like, root, doors)
        its_job = read_job(named.run.job_json) if named.run is not None else None
        return of_checkpoint(_manifest_of(named), str(named)), its_job, f"--like={named.folder}"
    if job is not None and like is None:
        its_job = load_job(job, env=doors.env)
        return of_job(its_job, job.name), its_job, f"--job={_absolute(job)}"
    raise UserError("what shall be in it? give --like RUN, or --job JOB.toml (one of them)")


def _made(place: Place, make: Callable[[Path], Made]) -> Made:
    """Make the checkpoint, and the run around it where there is none yet: one folder, which appears whole."""
    from slurmtrain.checkpoint.making import make_run
    from slurmtrain.rundir import checkpoint_step

    if place.job is None or place.run is None:
        return make(place.out)
    step = checkpoint_step(place.out.name)
    assert step is not None
    return make_run(place.run.path, step, place.job, make)


def _absolute(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100 links stay


def _output(name: str, what: str) -> Path:
    return output_beside(Path(name), what)


def _tell(made: Made, place: Place, *more: str) -> None:
    from slurmtrain.units import counted, format_size

    manifest: Manifest = made.manifest
    for note in (*made.notes, *more):
        if note:
            click.echo(f"note: {note}", err=True)
    click.echo(f"step     {manifest.step}")
    click.echo(f"tensors  {len(manifest.tensors)}, {format_size(manifest.total_bytes)} in {counted(len(manifest.files), 'file')}")
    click.echo(f"folder   {place.out}")
