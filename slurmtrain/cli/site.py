"""`slurmtrain site`: which sites there are, what one of them says, and how often its nodes fail."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

from slurmtrain.cli.doors import doors_of
from slurmtrain.cli.options import examples
from slurmtrain.cli.site_faults import command as faults

_BARE = re.compile(r"[A-Za-z0-9_-]+")


@click.group(epilog=examples("slurmtrain site list", "slurmtrain site show devcluster"))
def command() -> None:
    """List the sites, show one, or show how often its nodes fail."""


command.add_command(faults)


@command.command("list", short_help="List the sites with their files.", epilog=examples("slurmtrain site list"))
@click.pass_context
def list_(ctx: click.Context) -> None:
    """List the sites with their files; a file found earlier hides later ones of its name."""
    from slurmtrain.config.sites import list_sites

    sites = list_sites(doors_of(ctx).env)
    width = max((len(name) for name, _, _ in sites), default=0)
    for name, path, description in sites:
        click.echo(f"{name:{width}}  {path}{f'  {description}' if description else ''}")


@command.command(short_help="Show a site, resolved, as a site file.", epilog=examples("slurmtrain site show dgx-h100 > my-site.toml"))
@click.argument("name", required=False)
@click.pass_context
def show(ctx: click.Context, name: str | None) -> None:
    """Show a site as it is resolved, with defaults and policy, as a site file; without NAME the one that would be used."""
    from slurmtrain.cli.runs import cluster_name
    from slurmtrain.config.sites import choose_site, find_file

    doors = doors_of(ctx)
    said = name or doors.env.get("SLURMTRAIN_SITE")
    site = choose_site(name, doors.env, lambda: cluster_name(doors.slurm))
    click.echo(f"# from {find_file('site', said or site.name, doors.env)}")
    values = site.model_dump(mode="json", exclude_none=True)
    values.pop("v", None)
    for line in toml_lines(values):
        click.echo(line)


def toml_lines(values: Mapping[str, Any], table: str = "") -> Iterator[str]:
    """The lines of a TOML file that holds these values: single ones first, then a table each.

    >>> list(toml_lines({"name": "x", "node": {"gpus": 4}}))
    ['name = "x"', '', '[node]', 'gpus = 4']
    """
    for key, value in values.items():
        if not isinstance(value, Mapping):
            yield f"{_key(key)} = {json.dumps(value)}"
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            inner = f"{table}.{_key(key)}" if table else _key(key)
            yield from ("", f"[{inner}]")
            yield from toml_lines(value, inner)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)
