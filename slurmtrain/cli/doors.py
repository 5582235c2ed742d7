"""The doors of a command line: environment, other programs, time, disk and Slurm; tests give a command others (`obj=Doors(...)`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from slurmtrain.atomic import Disk, SystemDisk
from slurmtrain.clock import Clock, SystemClock
from slurmtrain.shell import Shell, SystemShell
from slurmtrain.slurm.client import SlurmClient


@dataclass(frozen=True)
class Doors:
    """What a command touches the world with."""

    env: Mapping[str, str]
    shell: Shell
    clock: Clock
    disk: Disk
    slurm: SlurmClient


def system_doors() -> Doors:
    """Those of the machine that the command runs on."""
    from slurmtrain.slurm.cli_client import CliSlurm

    env, shell, clock = dict(os.environ), SystemShell(), SystemClock()
    return Doors(env, shell, clock, SystemDisk(), CliSlurm(shell, clock, env, cache_dir=cache_folder(env), say=_say))


def _say(text: str) -> None:
    click.echo(f"slurmtrain: {text}", err=True)


def cache_folder(env: Mapping[str, str]) -> Path | None:
    """Where answers of Slurm are shared between commands of one user; None without a home."""
    base = env.get("XDG_CACHE_HOME") or (f"{env['HOME']}/.cache" if env.get("HOME") else "")
    return Path(base) / "slurmtrain" if base else None


def doors_of(ctx: click.Context) -> Doors:
    """Those that the caller of the command gave, else this machine's."""
    return ctx.find_object(Doors) or system_doors()
