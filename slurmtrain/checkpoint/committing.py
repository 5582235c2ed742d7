"""Rank 0's part in every save, whoever writes: is there room, is the run still ours, and what the writers wrote becomes a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurmtrain.checkpoint.group import reason_of
from slurmtrain.checkpoint.reports import Report, assemble
from slurmtrain.checkpoint.saver import Header, Terms
from slurmtrain.clock import Clock
from slurmtrain.errors import CheckpointError, SlurmtrainError
from slurmtrain.resilience.ownership import check_owner
from slurmtrain.rundir import RunDir
from slurmtrain.shell import Shell
from slurmtrain.store.commit import OwnerCheck, discard, open_staging, publish
from slurmtrain.store.manifest import Manifest
from slurmtrain.store.retention import retain
from slurmtrain.store.space import Need, shortage
from slurmtrain.store.striping import stripe
from slurmtrain.store.verify import read_manifest, size_problems
from slurmtrain.syscalls import Syscalls


class Committer:
    """Makes a staging folder, and of it a checkpoint. Errors: OwnershipError, CheckpointError, OSError."""

    def __init__(self, terms: Terms, *, calls: Syscalls, clock: Clock, shell: Shell, owner_check: OwnerCheck | None = None) -> None:
        self._terms, self._calls, self._clock, self._shell = terms, calls, clock, shell
        self._owner_check = owner_check
        self._notes: list[str] = []

    def open(self, header: Header, need: Need) -> Path | None:
        """A staging folder for files of this size together; None where a checkpoint of this step is there and verifies."""
        run, storage = self._terms.run, self._terms.storage
        self._notes = []
        if not run.path.is_dir():
            raise CheckpointError(f"{run.path}: the run's folder is gone: it was moved away, or its file system is not there")
        staging = open_staging(run, header.step, header.attempt, lambda: self.check(header), calls=self._calls)
        if staging is None:
            return None
        if (short := shortage(run.checkpoints, need, shell=self._shell, site=storage)) is not None:
            discard(staging, self._calls)
            raise CheckpointError(f"{short}: make room, or keep fewer checkpoints (slurmtrain ckpt prune)")
        if (note := stripe(staging, storage, self._shell)) is not None:
            self._notes.append(note)
        return staging

    def conclude(self, header: Header, staging: Path, reports: Sequence[Report]) -> tuple[int, tuple[str, ...]]:
        """Publish; (bytes of all files, notes). On an error nothing is left but what was there before."""
        try:
            manifest = assemble(header, reports)
            publish(self._terms.run, staging, manifest, lambda: self.check(header), calls=self._calls)
        except BaseException:
            discard(staging, self._calls)
            raise
        notes = retain(self._terms.run, self._terms.retention, header.step, calls=self._calls, clock=self._clock)
        return manifest.total_bytes, (*self._notes, *notes)

    def check(self, header: Header) -> None:
        """Raise OwnershipError when another attempt owns the run."""
        if self._owner_check is not None:
            self._owner_check()
        else:
            check_owner(self._terms.run, header.attempt)


def there_already(step: int) -> str:
    """A note: nothing was written."""
    return f"step {step} is there already and verifies"


def published(run: RunDir, header: Header) -> Manifest | None:
    """The manifest of this very save where it was published, though whoever did it has not said so; its sizes are looked at."""
    folder = run.checkpoint(header.step)
    try:
        manifest = read_manifest(folder)
    except CheckpointError:
        return None
    same = (manifest.attempt, manifest.t) == (header.attempt, header.t)
    return manifest if same and not size_problems(folder, manifest) else None


def not_saved(step: int, error: BaseException) -> str:
    """One line for a failed save."""
    text = str(error) if isinstance(error, SlurmtrainError) else reason_of(error)
    begin = f"checkpoint of step {step} not saved"
    return text if text.startswith("checkpoint of step ") else f"{begin}: {text}"
