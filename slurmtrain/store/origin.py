"""Where a branch came from: `origin.json` of its run folder names the checkpoint of another run that it began with.

    {"v":1,"run":"/runs/a","step":1200,"lineage":[{"run":"/runs/first","step":300}]}

`lineage`: where that run had come from itself, the nearest first.

>>> branch = Origin(Path("/runs/a"), 1200, (Ancestor(Path("/runs/first"), 300),))
>>> str(branch), from_json(branch.to_json()) == branch
('/runs/a at step 1200, a branch of /runs/first at step 300', True)
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.atomic import to_json
from slurmtrain.config.weights import run_weights
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.leases import pin
from slurmtrain.syscalls import SYSTEM, Syscalls

ORIGIN_VERSION = 1
PIN_SECONDS = 60 * 86400.0
"""A branch that has no checkpoint of its own after so long no longer keeps the one that it begins with."""


@dataclass(frozen=True)
class Ancestor:
    """A checkpoint of another run."""

    run: Path
    step: int

    def __str__(self) -> str:
        return f"{self.run} at step {self.step}"


@dataclass(frozen=True)
class Origin:
    """The checkpoint that a run began with, and where that run had come from."""

    run: Path
    step: int
    lineage: tuple[Ancestor, ...] = ()

    def to_json(self) -> bytes:
        """The bytes of `origin.json`."""
        before = [{"run": str(one.run), "step": one.step} for one in self.lineage]
        return to_json({"v": ORIGIN_VERSION, "run": str(self.run), "step": self.step, "lineage": before})

    def __str__(self) -> str:
        return ", a branch of ".join(str(one) for one in (Ancestor(self.run, self.step), *self.lineage))


def branch_of(run: RunDir, step: int) -> Origin:
    """The origin of a run that begins with a checkpoint of this one. Raises CheckpointError where its own cannot be read."""
    own = read_origin(run)
    return Origin(run.path, step, () if own is None else (Ancestor(own.run, own.step), *own.lineage))


def read_origin(run: RunDir) -> Origin | None:
    """None for a run that is no branch. Raises CheckpointError where the file cannot be read."""
    try:
        data = run.origin_json.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{run.origin_json}: {error.strerror or error}") from None
    return from_json(data, str(run.origin_json))


def from_json(data: bytes, where: str = "origin.json") -> Origin:
    """Raises CheckpointError for what is none, or a newer release's."""
    try:
        raw = json.loads(data)
        version, run, step = int(raw["v"]), Path(str(raw["run"])), int(raw["step"])
        lineage = tuple(Ancestor(Path(str(one["run"])), int(one["step"])) for one in raw.get("lineage", ()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise CheckpointError(f"{where}: is damaged: it does not name the checkpoint that this run began with") from None
    if version > ORIGIN_VERSION:
        raise CheckpointError(f"{where}: format version {version}; this release reads up to {ORIGIN_VERSION}: use a newer slurmtrain")
    return Origin(run, step, lineage)


def borrowed(origin: Origin | None, weights: Path | None) -> list[Origin]:
    """Checkpoints of other runs that a run needs until it has one of its own: a branch's origin, and those of `model.weights`."""
    source = run_weights(weights)
    return [*([] if origin is None else [origin]), *([] if source is None or source.step is None else [Origin(source.path, source.step)])]


def hold(origin: Origin, branch: RunDir) -> str | None:
    """Keep a checkpoint until the run that needs it lets it go. None, or a note where that could not be written."""
    return pin(RunDir(origin.run), origin.step, _by(branch), PIN_SECONDS)


def let_go(origin: Origin, branch: RunDir, calls: Syscalls = SYSTEM) -> None:
    """The run has a checkpoint of its own, or will never begin. What cannot be taken back ends by itself."""
    source = RunDir(origin.run)
    with suppress(OSError):
        for entry in list(os.scandir(source.leases)):
            if entry.name.startswith(f"{source.checkpoint(origin.step).name}.") and _holder(Path(entry.path)) == _by(branch):
                calls.unlink(Path(entry.path))


def _by(branch: RunDir) -> str:
    return f"branch {branch.path}"


def _holder(lease: Path) -> str:
    try:
        return str(json.loads(lease.read_bytes())["by"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
