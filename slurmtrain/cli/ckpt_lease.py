"""While a command reads a checkpoint, the run that it belongs to leaves it alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from slurmtrain.cli.ckpt_names import Named
from slurmtrain.cli.doors import Doors
from slurmtrain.telemetry.history import whoami


@contextmanager
def kept_while_read(named: Named, what: str, doors: Doors) -> Iterator[None]:
    """Lease it; where that cannot be written (another's run), say so and read all the same. Nothing for a folder by itself."""
    from slurmtrain.store.leases import lease

    if named.run is None or named.step is None or named.folder != named.run.checkpoint(named.step):
        yield
        return
    with lease(named.run, named.step, f"{what} of {whoami()}", clock=doors.clock) as note:
        if note:
            click.echo(f"note: {note}", err=True)
        yield
