"""`slurmtrain ckpt copy`: a checkpoint in another place, every byte compared on the way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.batch import batch_options, ended_by_sigterm, output_beside, sent_to_batch
from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import examples, root_option

if TYPE_CHECKING:
    from slurmtrain.cli.ckpt_names import Named


@click.command(
    "copy",
    short_help="Copy a checkpoint to a folder or another run.",
    epilog=examples("slurmtrain ckpt copy my-run@3000 /archive/my-run", "slurmtrain ckpt copy my-run@3000 branch --batch -t 1h"),
)
@click.argument("name", metavar="RUN[@STEP]|DIR")
@click.argument("dest", metavar="DEST")
@root_option
@batch_options
@click.pass_context
def command(ctx: click.Context, /, name: str, dest: str, root: Path | None, **said: Any) -> None:
    """Copy a checkpoint (default: the run's newest) as DEST/step-NNNNNNNN, or into the run DEST.

    Every byte is compared with its sum on the way; the copy is durable, and appears whole, by one rename, or not at all.
    """
    from slurmtrain.checkpoint.making import kinds_of
    from slurmtrain.cli.ckpt_names import checkpoint_named
    from slurmtrain.cli.ckpt_place import check_model, check_room, place_of
    from slurmtrain.store.verify import read_manifest
    from slurmtrain.units import counted, format_size

    doors = doors_of(ctx)
    named = checkpoint_named(name, root, doors)
    manifest = read_manifest(named.folder)
    place = place_of(dest, manifest.step, root, doors)
    check_model(place, kinds_of(manifest), str(named))
    check_room(place.out, manifest.total_bytes, len(manifest.files) + 1, place.run or named.run, doors)
    again = ["ckpt", "copy", str(named.folder), place.word]
    if sent_to_batch(ctx, said, again, output=output_beside(Path(named.file_name), "copy")):
        return
    with ended_by_sigterm():
        _copy(named, place.out, manifest.total_bytes, doors)
    click.echo(f"{place.out}: {counted(len(manifest.files), 'file')}, {format_size(manifest.total_bytes)}, verified on the way")


def _copy(named: Named, out: Path, size: int, doors: Doors) -> None:
    from slurmtrain.checkpoint.copying import copy_checkpoint
    from slurmtrain.cli.bars import bar
    from slurmtrain.cli.ckpt_lease import kept_while_read

    with kept_while_read(named, "ckpt copy", doors), bar(f"copying {named}", size, sizes=True) as advance:
        copy_checkpoint(named.folder, out, advance=advance)
