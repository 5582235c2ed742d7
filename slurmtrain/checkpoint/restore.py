"""Back to the newest checkpoint that can be loaded: all ranks load the same one, or all hear the same error.

Rank 0 looks for it and hands out the manifest, so that a thousand ranks read one file once; what reading the bytes brings to light is
gathered, and all ranks turn to the one before together. One that is damaged is set aside only when an older one has been loaded: as
long as nothing is, all stay where they are, for to begin anew is a person's decision.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from slurmtrain.checkpoint.damage import with_tensors
from slurmtrain.checkpoint.group import Failure, Group, captured, reason_of
from slurmtrain.checkpoint.load import loose_chunks
from slurmtrain.checkpoint.reading import MISSING, FileReader
from slurmtrain.errors import CheckpointError, CorruptCheckpointError, SlurmtrainError, UnreadableCheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.leases import lease
from slurmtrain.store.listing import LOOKS, Found, folders_present, summary
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest
from slurmtrain.store.verify import Policy, cheap_problems, sampled

SetAside = Callable[[int, str], None]
"""Moves a damaged checkpoint of a step out of the way, and says why."""


class Rival(Protocol):
    """Checkpoints of the same run that lie nearer. All ranks call it and get the same."""

    @property
    def newest(self) -> int | None:
        """The step of the newest that is left."""

    @property
    def passed_over(self) -> Sequence[tuple[int, str]]:
        """(step, why) of what could not be loaded, or not from where it lay."""

    def load(self, load: Callable[[Found], None]) -> Found | None:
        """Load the newest, or give it up: None. Raises what `restore` raises, but for what is damaged."""


def restore(
    run_checkpoints: Path,
    group: Group,
    load: Callable[[Found], None],
    *,
    policy: Policy = "full",
    step: int | None = None,
    at_most: int | None = None,
    set_aside: SetAside | None = None,
    rival: Rival | None = None,
) -> Found | None:
    """Load the newest checkpoint in a folder that can be loaded, of those up to step `at_most`, or that of `step` alone; None where there
    is none.

    Called by all ranks. `load` fills a rank's tensors, comparing bytes by the same policy (`PartReader`); no collective belongs in it,
    for it may fail on one rank alone, and it may be called again with an older checkpoint. One that raises CorruptCheckpointError on
    any rank is passed over; any other error is raised on all ranks, by its kind where it is one of ours, as CheckpointError else. Raises
    CorruptCheckpointError where there are checkpoints in the folder and none can be loaded, or that of `step` cannot. Those of `rival`
    are tried in their turn, before one of the same step.
    """
    search, nearer = _Search(run_checkpoints, policy, step, at_most), rival or _NONE
    offer = group.broadcast(captured(search.offer) if group.rank == 0 else None)
    while True:
        if _goes_first(nearer.newest, offer):
            if (found := nearer.load(load)) is not None:
                told = group.broadcast(search.settled(set_aside) if group.rank == 0 else None)
                return replace(found, passed_over=_by_step(nearer.passed_over, told))
            continue
        if isinstance(offer, Failure):
            raise offer.error()
        if offer is None:
            return None
        error = _tried(offer, load, search, group)
        failures = group.gather(None if error is None else Failure(reason_of(error), type(error).__name__))
        verdict = group.broadcast(search.verdict(failures, set_aside) if failures is not None else None)
        if isinstance(verdict, tuple):
            return replace(offer.found(), passed_over=_by_step(nearer.passed_over, verdict))
        if isinstance(verdict, Failure):
            if error is not None and not isinstance(error, SlurmtrainError):
                raise error  # a programmer's mistake is seen where it was made
            raise verdict.error()
        offer = group.broadcast(captured(search.offer) if group.rank == 0 else None)


class _Nothing:
    """No rival."""

    newest = None
    passed_over = ()

    def load(self, load: Callable[[Found], None]) -> Found | None:
        raise AssertionError(load)


_NONE = _Nothing()


def _goes_first(newest: int | None, offer: _Offer | Failure | None) -> bool:
    """Whether a rival's checkpoint is tried before what the folder has to offer."""
    if newest is None or (isinstance(offer, Failure) and not issubclass(offer.type, CorruptCheckpointError)):
        return False
    return not isinstance(offer, _Offer) or newest >= offer.step


def _by_step(*told: Sequence[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    """All that was passed over, newest first."""
    return tuple(sorted((one for some in told for one in some), key=lambda one: -one[0]))


@dataclass(frozen=True)
class _Offer:
    """A checkpoint that all ranks shall try; `manifest`: the bytes of its manifest."""

    step: int
    folder: Path
    manifest: bytes
    passed_over: tuple[tuple[int, str], ...]

    def found(self) -> Found:
        manifest = Manifest.from_json(self.manifest, str(self.folder / MANIFEST_NAME))
        return Found(self.step, self.folder, manifest, self.passed_over)


def _tried(offer: _Offer, load: Callable[[Found], None], search: _Search, group: Group) -> Exception | None:
    """What the loading of a checkpoint raised on this rank."""
    run = RunDir(offer.folder.parent.parent)
    try:
        with lease(run, offer.step, f"a restart of {group.size} ranks") if group.rank == 0 else nullcontext():
            found = offer.found()
            load(found)
            if group.rank == 0:
                _check_loose(found, search.loose)
    except Exception as error:  # noqa: BLE001 peers must hear of any failure
        return error
    return None


def _check_loose(found: Found, loose: Mapping[str, Sequence[int]]) -> None:
    """Compare these chunks of its files, which hold no tensor, only what HDF5 itself needs: nobody else reads them."""
    for name, chunks in loose.items():
        reader = FileReader(found.folder / name, found.manifest.files[name], found.manifest.chunk_bytes)
        try:
            for chunk in chunks:
                reader.whole(chunk)
        finally:
            reader.close()


@dataclass
class _Search:
    """Rank 0's: what has been tried, and what is left."""

    folder: Path
    policy: Policy
    step: int | None
    at_most: int | None = None
    passed: list[tuple[int, str, bool]] = field(default_factory=list)
    """Step, why, and whether it is damaged."""
    loose: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Of the last offer: chunks that are still to be compared, by file."""
    _gone: list[int] = field(default_factory=list)
    _left: Iterator[_Offer] | None = None
    _last: int = -1

    def offer(self) -> _Offer | None:
        """The next checkpoint that is worth a try; None where there is none at all. Raises CorruptCheckpointError when all were tried."""
        if self._left is None:
            self._left = self._offers()
        if (found := next(self._left, None)) is not None:
            return found
        if self.passed:
            reasons = "; ".join(f"step {step}: {why}" for step, why, _ in self.passed)
            what = (
                "no checkpoint verifies: mend one, or move the folder away to start anew"
                if self.step is None
                else f"the checkpoint of step {self.step} does not verify: `slurmtrain ckpt list` shows the others"
            )
            raise CorruptCheckpointError(f"{self.folder}: {what} ({reasons})")
        if self._gone:
            raise CheckpointError(f"{self.folder}: step {self._gone[0]} went while it was looked at: try again")
        return None

    def verdict(self, failures: Sequence[Failure | None], set_aside: SetAside | None) -> tuple[tuple[int, str], ...] | Failure | None:
        """What becomes of the last offer: all ranks have it (what was passed over), all raise a failure, or all go on (None)."""
        failed = [(rank, one) for rank, one in enumerate(failures) if one is not None]
        if not failed:
            return self.settled(set_aside)
        fatal = next((pair for pair in failed if not issubclass(pair[1].type, CorruptCheckpointError)), None)
        rank, worst = fatal or failed[0]
        alike = len({one.message for _, one in failed}) == 1 and len(failed) == len(failures)
        message = worst.message if alike else f"rank {rank}: {worst.message}"
        if fatal:
            return Failure(message, worst.kind)
        damaged = any(not issubclass(one.type, UnreadableCheckpointError) for _, one in failed)
        self.passed.append((self._last, message, damaged))
        return None

    def _offers(self) -> Iterator[_Offer]:
        """Those that pass the cheap checks, newest first. Looks again where one went meanwhile: a run that trains on makes newer ones."""
        for _ in range(LOOKS):
            self._gone = []
            for step, folder in folders_present(self.folder):
                if step in {one for one, _, _ in self.passed} or not self._meant(step):
                    continue
                data = self._looked_at(step, folder)
                if data is not None:
                    self._last = step
                    yield _Offer(step, folder, data, tuple((one, why) for one, why, _ in self.passed))
            if not self._gone:
                return

    def _meant(self, step: int) -> bool:
        return (self.step is None or step == self.step) and (self.at_most is None or step <= self.at_most)

    def _looked_at(self, step: int, folder: Path) -> bytes | None:
        """The bytes of a manifest that fits what is in its folder."""
        path = folder / MANIFEST_NAME
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise CorruptCheckpointError(f"{path}: not a file")
            data = path.read_bytes()
            manifest = Manifest.from_json(data, str(path))
            problems = with_tensors(manifest, cheap_problems(folder, manifest))
            damaged = bool(problems) and not _refused(folder, manifest)
            self.loose = {} if problems else _loose(manifest, self.policy)
        except OSError as error:
            problems, damaged = [f"{path}: {error.strerror or error}"], error.errno in MISSING
        except CheckpointError as error:
            problems, damaged = [str(error)], isinstance(error, CorruptCheckpointError)
        if not problems:
            return data
        if os.path.lexists(folder):
            self.passed.append((step, summary(problems), damaged))
        else:
            self._gone.append(step)
        return None

    def settled(self, set_aside: SetAside | None) -> tuple[tuple[int, str], ...]:
        """What was passed over, now that one is loaded; what is damaged goes out of the way."""
        told = []
        for step, why, damaged in self.passed:
            note = ""
            if damaged and set_aside is not None and os.path.lexists(RunDir(self.folder.parent).checkpoint(step)):
                try:
                    set_aside(step, why)
                except (OSError, SlurmtrainError) as error:
                    note = f" (not set aside: {reason_of(error)})"
            told.append((step, why + note))
        return tuple(told)


def _loose(manifest: Manifest, policy: Policy) -> Mapping[str, Sequence[int]]:
    """Chunks that hold no tensor and that the policy compares, by file."""
    if policy == "sizes":
        return {}
    found = loose_chunks(manifest)
    wanted = {name: set(sampled(len(manifest.files[name].xxh3_64), policy)) for name in found}
    return {name: [chunk for chunk in chunks if chunk in wanted[name]] for name, chunks in found.items()}


def _refused(folder: Path, manifest: Manifest) -> bool:
    """Whether the system, not damage, is what keeps a file from being looked at."""
    for name in manifest.files:
        try:
            (folder / name).stat()
        except OSError as error:
            if error.errno not in MISSING:
                return True
    return False
