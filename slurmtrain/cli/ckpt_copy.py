"""`slurmtrain ckpt copy`: a checkpoint in another place, every byte compared on the way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.batch import batch_options, ended_by_sigterm, output_beside, sent_to_batch
from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import examples, root_option

if TYPE_CHECKING:
    from slurmtrain.cli.ckpt_names import Named
    from slurmtrain.rundir import RunDir
    from slurmtrain.store.manifest import Manifest


@dataclass(frozen=True)
class _Place:
    """Where a copy goes: the folder of the checkpoint to be made, and the run that it then belongs to."""

    out: Path
    run: RunDir | None


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
    from slurmtrain.checkpoint.newfolder import check_out
    from slurmtrain.cli.ckpt_names import checkpoint_named
    from slurmtrain.store.verify import read_manifest
    from slurmtrain.units import counted, format_size

    doors = doors_of(ctx)
    named = checkpoint_named(name, root, doors)
    manifest = read_manifest(named.folder)
    place = _place(dest, manifest.step, root, doors)
    check_out(place.out)
    _check_room(place, named, manifest, doors)
    again = ["ckpt", "copy", str(named.folder), str(place.run.path if place.run else place.out.parent)]
    if sent_to_batch(ctx, said, again, output=output_beside(Path(named.file_name), "copy")):
        return
    with ended_by_sigterm():
        _copy(named, place, manifest.total_bytes, doors)
    click.echo(f"{place.out}: {counted(len(manifest.files), 'file')}, {format_size(manifest.total_bytes)}, verified on the way")


def _place(dest: str, step: int, root: Path | None, doors: Doors) -> _Place:
    """A run where DEST names one, else a folder. Raises UserError for a run that trains, and a word that is neither."""
    from slurmtrain.cli.facts import locate, see
    from slurmtrain.cli.runs import is_run
    from slurmtrain.errors import ConfigError, RunNotFoundError, UserError
    from slurmtrain.rundir import RunDir, checkpoint_step

    path = Path(dest).expanduser().absolute()
    run = RunDir(path) if is_run(path) else None
    if run is None and "/" not in dest:
        try:
            run = locate(dest, root, doors)
        except (RunNotFoundError, ConfigError) as error:
            if not path.is_dir():
                raise UserError(f"{dest}: no such run, and no such folder: write ./{dest} to make one") from error
    if run is None:
        if checkpoint_step(path.name) is not None:
            raise UserError(f"{dest}: name the folder that the copy shall lie in: it is {path.parent.name}/step-{step:08d} then")
        return _Place(path / RunDir(path).checkpoint(step).name, None)
    if see(run, doors).state.state == "RUNNING":
        raise UserError(f"run {run.name} trains: a checkpoint from elsewhere would be taken for its own: stop it first, or name a folder")
    return _Place(run.checkpoint(step), run)


def _check_room(place: _Place, named: Named, manifest: Manifest, doors: Doors) -> None:
    """Raises UserError where there is none."""
    from slurmtrain.config.site import SiteStorage
    from slurmtrain.config.stored import read_site
    from slurmtrain.errors import ConfigError, UserError
    from slurmtrain.store.space import Need, shortage

    run = place.run or named.run
    try:
        site = read_site(run.site_json).storage if run is not None else SiteStorage()
    except ConfigError:
        site = SiteStorage()
    there = next(folder for folder in place.out.parents if folder.is_dir())
    short = shortage(there, Need(manifest.total_bytes, len(manifest.files) + 1), shell=doors.shell, site=site)
    if short is not None:
        raise UserError(f"no room for the copy: {short}")


def _copy(named: Named, place: _Place, size: int, doors: Doors) -> None:
    from slurmtrain.checkpoint.copying import copy_checkpoint
    from slurmtrain.cli.bars import bar
    from slurmtrain.cli.ckpt_lease import kept_while_read

    with kept_while_read(named, "ckpt copy", doors), bar(f"copying {named}", size, sizes=True) as advance:
        copy_checkpoint(named.folder, place.out, advance=advance)
