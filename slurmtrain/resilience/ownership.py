"""Whether the run is still this attempt's: read before anything is published, and while training goes on."""

from __future__ import annotations

from slurmtrain.errors import OwnershipError
from slurmtrain.resilience.records import read_owner
from slurmtrain.rundir import RunDir


def check_owner(run: RunDir, attempt: int) -> None:
    """Raise OwnershipError when owner.json names another attempt. A run that nobody owns (no owner.json) is open to all."""
    owner = read_owner(run.owner_json)
    if owner is not None and owner.attempt != attempt:
        raise OwnershipError(f"{run.path}: this run belongs to {owner} now: attempt {attempt} leaves without saving")
