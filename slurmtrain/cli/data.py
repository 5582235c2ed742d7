"""`slurmtrain data`: folders of tokens."""

from __future__ import annotations

from pathlib import Path

import click

from slurmtrain.cli.options import examples


@click.group(epilog=examples("slurmtrain data build ~/corpus --out /scratch/me/tokens"))
def command() -> None:
    """Build folders of tokens that a job file's [data] path names."""


@command.command(epilog=examples("slurmtrain data build /usr/lib/python3.11 --out data/python"))
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option("--force", is_flag=True, help="Replace a folder that holds other tokens.")
def build(paths: tuple[Path, ...], out: Path, force: bool) -> None:
    """Turn text files, or folders of them, into indexed byte tokens."""
    from slurmtrain.data import build as builder

    done = builder.build(paths, out, force=force)
    click.echo(f"tokens     {done.tokens}")
    click.echo(f"documents  {done.documents}")
    click.echo(f"folder     {done.folder}{' (unchanged)' if done.unchanged else ''}")
