"""Under which id a run is known to whoever draws its curves: the same over all attempts, jobs and requeues."""

from __future__ import annotations

import hashlib

from slurmtrain.rundir import RunDir


def run_id(run: RunDir) -> str:
    """Follows from the folder's path alone."""
    return hashlib.blake2b(str(run.path).encode(), digest_size=8).hexdigest()
