"""The `slurmtrain` command: a group whose commands are imported when they are used."""

from __future__ import annotations

import click

from slurmtrain import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="slurmtrain")
def main() -> None:
    """Train large models on Slurm: submit, watch, stop, come back."""
