"""Our checkpoints as one of the ways: a whole save, published, of all members together; reads with every byte verified."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoint_state import Array
from checkpoint_world import Member

from slurmtrain.checkpoint.load import PartReader, Wish
from slurmtrain.checkpoint.restore import restore
from slurmtrain.checkpoint.saver import ArraySource, Header, Piece, Saver, Terms
from slurmtrain.checkpoint.staged import AsyncSaver
from slurmtrain.checkpoint.sync import SyncSaver
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import Found
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest
from slurmtrain.store.retention import RetentionPolicy

STEP = 1


def source_of(state: Sequence[Array]) -> ArraySource:
    return ArraySource([Piece(one.name, one.global_shape, one.box, "float32", one.array) for one in state])


def wishes_of(targets: Sequence[Array]) -> list[Wish]:
    return [Wish(one.part, "float32", one.array) for one in targets]


def terms_of(folder: Path) -> Terms:
    return Terms(RunDir(folder), RetentionPolicy(2))


def unowned() -> None:
    """No other attempt can own what the benchmark writes."""


def header() -> Header:
    return Header(STEP, 1, 0, time.time(), {}, {})


@dataclass
class Saving:
    """A saver and what it saves, kept from one save to the next as a run does."""

    folder: Path
    saver: Saver
    source: ArraySource

    def close(self) -> None:
        self.saver.close()


class Ours:
    """The synchronous save, and the reader with every chunk compared with its sum."""

    name = "ours"

    def ready(self, member: Member, folder: Path) -> None:
        """What a run does once, before its first step."""
        kept = member.kept.get("saving")
        if kept is None or kept.folder != folder:
            kept = member.kept["saving"] = self._saving(member, folder, member.kept["state"])
            kept.saver.prepare(kept.source)

    def write(self, member: Member, folder: Path, state: Sequence[Array]) -> None:
        kept = member.kept.get("saving") if state is member.kept.get("state") else None
        saving = kept or self._saving(member, folder, state)
        assert saving.folder == folder, (saving, folder)
        outcome = saving.saver.begin(header(), saving.source)
        if outcome is None or not outcome.ok or outcome.notes:
            raise RuntimeError(f"not saved: {outcome}")
        if kept is None:
            saving.close()

    def read(self, member: Member, folder: Path, targets: Sequence[Array]) -> None:
        where = RunDir(folder).checkpoint(STEP)
        manifest = Manifest.from_json((where / MANIFEST_NAME).read_bytes())
        with PartReader(where, manifest) as reader:
            reader.fill_all(wishes_of(targets))

    def _saving(self, member: Member, folder: Path, state: Sequence[Array]) -> Saving:
        return Saving(folder, SyncSaver(terms_of(folder), member.group, owner_check=unowned), source_of(state))


class OurResume(Ours):
    """Reads as a restart does: rank 0 looks for the checkpoint, all load it and agree."""

    def read(self, member: Member, folder: Path, targets: Sequence[Array]) -> None:
        def load(found: Found) -> None:
            with PartReader(found.folder, found.manifest, turn=(member.rank, member.ranks)) as reader:
                reader.fill_all(wishes_of(targets))

        if restore(RunDir(folder).checkpoints, member.group, load) is None:
            raise RuntimeError(f"no checkpoint in {folder}")


class OurStall:
    """`begin` of the asynchronous saver."""

    name = "ours"

    def begin(self, member: Member, folder: Path) -> None:
        if "stall" not in member.kept:
            saver = AsyncSaver(terms_of(folder), member.group)
            member.kept["stall"] = Saving(folder, saver, source_of(member.kept["state"]))
        saving = member.kept["stall"]
        assert saving.folder == folder, (saving, folder)
        outcome = saving.saver.begin(header(), saving.source)
        if outcome is not None:
            raise RuntimeError(f"not saved: {outcome}")

    def finish(self, member: Member) -> None:
        for outcome in member.kept["stall"].saver.wait():
            if not outcome.ok or outcome.notes:
                raise RuntimeError(f"not saved: {outcome}")
