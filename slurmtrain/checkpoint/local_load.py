"""Going on from the nodes' own disks: what is there, which of it is whole, and what each node must be brought before it can load.

Each node looks at its own disk; rank 0 puts together what all have. A node needs the files that its ranks want parts of, under whatever
layout: those that it lacks come from nodes that have them, each compared with its sums, and stay on this node's disk. A file that turns
out damaged counts as absent from then on, and its copy is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmtrain.boxes import Part
from slurmtrain.checkpoint.group import Failure, Group, captured, reason_of
from slurmtrain.checkpoint.local_fetch import Carrier, Transfer, Trouble, files_of, plan_transfers
from slurmtrain.checkpoint.local_save import Ground
from slurmtrain.checkpoint.peers import PeerGroup, receive_value, send_value
from slurmtrain.errors import CheckpointError, CorruptCheckpointError
from slurmtrain.store.listing import Found
from slurmtrain.store.local import Rules
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest
from slurmtrain.store.scratch import LocalCandidate, candidates, held, incomplete, publish_local, seal_of
from slurmtrain.store.space import Need, full_disk
from slurmtrain.store.verify import index_problems, sum_problems
from slurmtrain.syscalls import SYSTEM, Syscalls, remove_tree

PartsOf = Callable[[Manifest], Iterable[Part]]
"""What a rank wants of a checkpoint; may raise ConfigError, CheckpointError."""


@dataclass(frozen=True)
class Brought:
    """All that the ranks of this node want of a checkpoint lies in `folder`. `needed`: the files, of this node."""

    candidate: LocalCandidate
    folder: Path
    manifest: Manifest
    needed: tuple[str, ...]


@dataclass(frozen=True)
class _Plan:
    """What rank 0 tells all: files that each node needs, and the rounds that bring them."""

    needed: tuple[frozenset[str], ...]
    rounds: tuple[tuple[Transfer, ...], ...]


class LocalLoads:
    """The checkpoints on the nodes of an attempt. All methods are collective over the group and give the same on all ranks.

    `passed_over`: (step, why) of what could not be taken, or not from where it lay.
    """

    def __init__(self, group: PeerGroup, ground: Ground, rules: Rules, calls: Syscalls = SYSTEM) -> None:
        self._group, self._seat, self._local, self._attempt = group, ground.seat, ground.local, ground.attempt
        self._rules, self._calls = rules, calls
        self.kept: list[tuple[int, int]] = []
        """(step, attempt) of what this node has, on its first rank."""
        self.passed_over: list[tuple[int, str]] = []

    def look(self) -> list[LocalCandidate]:
        """Those that are whole, newest first. A node whose disk cannot be read has none."""
        mine = captured(lambda: held(self._local)) if self._seat.first else None
        if isinstance(mine, list):
            self.kept = [(one.step, one.attempt) for one in mine]
        everybody = self._group.gather(mine)
        whole, broken = self._group.broadcast(None if everybody is None else self._put_together(everybody))
        self.passed_over += broken
        return list(whole)

    def bring(self, candidate: LocalCandidate, parts_of: PartsOf) -> Brought | None:
        """Let every node have what its ranks want of it; None where that cannot be done: `passed_over` then says why.

        Raises what `parts_of` raises, on all ranks alike.
        """
        step = candidate.step
        try:
            raw, manifest = self._manifest(candidate)
            wanted = self._wanted(manifest, parts_of)
            carrier = Carrier(self._group, self._seat, self._local.checkpoint(step), manifest, self._calls)
            while not candidate.missing:
                plan = self._plan(candidate, wanted)
                self._make_room(candidate, raw, manifest, plan)
                bad = self._judged(candidate, carrier.carry_out(plan.rounds))
                if not bad:
                    return Brought(candidate, self._local.checkpoint(step), manifest, tuple(sorted(plan.needed[self._seat.node])))
                candidate = self._without(candidate, bad)
            why = incomplete(candidate)
        except CorruptCheckpointError as error:
            why = str(error)
        self.passed_over.append((step, why))
        return None

    def blame(self, brought: Brought, why: str) -> LocalCandidate | None:
        """After a load failed: the candidate without the files that turn out damaged; None where it is of no use any more.

        `why`: what the load said, on any rank.
        """
        mine = list(brought.needed)[self._seat.local :: self._seat.local_size]
        found = captured(lambda: self._damaged(brought, mine))
        troubles = [] if isinstance(found, Failure) else found
        bad = self._agree(troubles, lambda answers: [one for some in answers for one in some])
        if not bad:
            self.passed_over.append((brought.candidate.step, f"local: {why}"))
            return None
        candidate = self._without(brought.candidate, bad)
        if candidate.missing:
            self.passed_over.append((candidate.step, incomplete(candidate)))
            return None
        return candidate

    def _agree(self, mine: Any, conclude: Callable[[list[Any]], Any]) -> Any:
        """What rank 0 makes of all ranks' answers; its errors are raised on all ranks."""
        answers = self._group.gather(mine)
        told = self._group.broadcast(None if answers is None else captured(lambda: conclude(answers)))
        if isinstance(told, Failure):
            raise told.error()
        return told

    def _put_together(self, everybody: Sequence[Any]) -> tuple[list[LocalCandidate], list[tuple[int, str]]]:
        firsts = everybody[:: self._seat.local_size]
        return candidates([one if isinstance(one, list) else [] for one in firsts], self._rules)

    def _manifest(self, candidate: LocalCandidate) -> tuple[bytes, Manifest]:
        """Its bytes, and what they say. From the first node that has it, by way of rank 0."""
        group, seat = self._group, self._seat
        node = min(one for nodes in candidate.holders.values() for one in nodes)
        data: Any = None
        if seat.node == node and seat.first:
            data = captured((self._local.checkpoint(candidate.step) / MANIFEST_NAME).read_bytes)
            if group.rank != 0:
                send_value(group, data, 0)()
        elif group.rank == 0:
            data = receive_value(group, node * seat.local_size)
        data = group.broadcast(data)
        where = f"local: {seat.nodes[node]}: {MANIFEST_NAME} of step {candidate.step}"
        if isinstance(data, Failure):
            raise CorruptCheckpointError(f"{where}: {data.message}")
        if seal_of(data) != candidate.seal:
            raise CorruptCheckpointError(f"{where}: is another than a moment ago")
        manifest = Manifest.from_json(data, where)
        problems = group.broadcast(index_problems(self._local.checkpoint(candidate.step), manifest) if group.rank == 0 else None)
        if problems:
            raise CorruptCheckpointError(f"{where}: {problems[0]}")
        return data, manifest

    def _wanted(self, manifest: Manifest, parts_of: PartsOf) -> tuple[frozenset[str], ...] | None:
        """On rank 0: the files that each node needs."""
        mine = captured(lambda: files_of(manifest, parts_of(manifest)))
        answers = self._group.gather(mine)
        failed = self._group.broadcast(None if answers is None else next((one for one in answers if isinstance(one, Failure)), None))
        if failed is not None:
            raise failed.error()
        if answers is None:
            return None
        size = self._seat.local_size
        return tuple(frozenset().union(*answers[i : i + size]) for i in range(0, len(answers), size))

    def _plan(self, candidate: LocalCandidate, wanted: tuple[frozenset[str], ...] | None) -> _Plan:
        def made() -> _Plan:
            assert wanted is not None
            rounds = plan_transfers(wanted, candidate.holders, self._seat.local_size)
            return _Plan(wanted, tuple(tuple(some) for some in rounds))

        plan = self._group.broadcast(captured(made) if self._group.rank == 0 else None)
        if isinstance(plan, Failure):
            raise plan.error()
        assert isinstance(plan, _Plan)
        return plan

    def _make_room(self, candidate: LocalCandidate, raw: bytes, manifest: Manifest, plan: _Plan) -> None:
        """A folder with the manifest on every node that needs files, and the room for those that come."""
        mine = captured(lambda: self._room(candidate, raw, manifest, plan)) if self._seat.first else None

        def conclude(answers: list[Any]) -> None:
            for rank, one in enumerate(answers):
                if isinstance(one, Failure):
                    raise CorruptCheckpointError(f"local: {self._seat.name_of(rank)}: {one.message}")

        self._agree(mine, conclude)

    def _room(self, candidate: LocalCandidate, raw: bytes, manifest: Manifest, plan: _Plan) -> None:
        local, step = self._local, candidate.step
        coming = {one.file for some in plan.rounds for one in some if one.target == self._seat.node}
        folder = local.checkpoint(step)
        if not _has(folder, candidate.seal):
            staging = local.staging(step, self._attempt)
            remove_tree(self._calls, staging)
            self._calls.mkdir(staging)
            publish_local(local, staging, step, raw, self._calls)
        if short := full_disk(folder, Need(sum(manifest.files[name].size for name in coming), len(coming))):
            raise CheckpointError(short)

    def _judged(self, candidate: LocalCandidate, troubles: list[Trouble]) -> list[Trouble]:
        """Files that nodes had and that are not good. Raises CorruptCheckpointError where something else was wrong."""

        def conclude(answers: list[list[Trouble]]) -> list[Trouble]:
            all_ = [one for some in answers for one in some]
            bad = [one for one in all_ if one.sent and one.node in candidate.holders[one.file]]
            if all_ and not bad:
                raise CorruptCheckpointError(f"local: {self._seat.nodes[all_[0].node]}: {all_[0].why}")
            return bad

        found: list[Trouble] = self._agree(troubles, conclude)
        return found

    def _damaged(self, brought: Brought, names: Sequence[str]) -> list[Trouble]:
        """Of these files on this node, compared in full."""
        node, manifest = self._seat.node, brought.manifest
        return [
            Trouble(name, node, f"{brought.folder}: {problems[0]}", sent=True)
            for name in names
            if (problems := _file_problems(brought.folder, manifest, name))
        ]

    def _without(self, candidate: LocalCandidate, bad: Sequence[Trouble]) -> LocalCandidate:
        for one in bad:
            candidate = candidate.without(one.node, one.file)
            if one.node == self._seat.node and self._seat.first:
                with suppress(OSError):
                    self._calls.unlink(self._local.checkpoint(candidate.step) / one.file)
            self.passed_over.append((candidate.step, f"local: {self._seat.nodes[one.node]}: {one.why}"))
        return candidate


class LocalRival:
    """What `restore` tries before the run folder: a `restore.Rival`. `found`: what `LocalLoads.look` found."""

    def __init__(self, loads: LocalLoads, group: Group, parts_of: PartsOf, found: Sequence[LocalCandidate]) -> None:
        self._loads, self._group, self._parts_of, self._left = loads, group, parts_of, list(found)

    @property
    def newest(self) -> int | None:
        return self._left[0].step if self._left else None

    @property
    def passed_over(self) -> Sequence[tuple[int, str]]:
        return tuple(self._loads.passed_over)

    def load(self, load: Callable[[Found], None]) -> Found | None:
        candidate: LocalCandidate | None = self._left.pop(0)
        while candidate is not None:
            brought = self._loads.bring(candidate, self._parts_of)
            if brought is None:
                return None
            found = Found(candidate.step, brought.folder, brought.manifest, tier="local")
            failure = self._tried(load, found)
            if failure is None:
                return found
            if not issubclass(failure.type, CorruptCheckpointError):
                raise failure.error()
            candidate = self._loads.blame(brought, failure.message)
        return None

    def _tried(self, load: Callable[[Found], None], found: Found) -> Failure | None:
        """What the loading raised on any rank: what is not damage first."""
        failures = self._group.gather(captured(lambda: load(found)))
        return self._group.broadcast(None if failures is None else _worst(failures))


def _worst(failures: Sequence[Any]) -> Failure | None:
    failed = [(rank, one) for rank, one in enumerate(failures) if isinstance(one, Failure)]
    if not failed:
        return None
    rank, one = min(failed, key=lambda pair: (issubclass(pair[1].type, CorruptCheckpointError), pair[0]))
    return Failure(f"rank {rank}: {one.message}", one.kind)


def _file_problems(folder: Path, manifest: Manifest, name: str) -> list[str]:
    """What is wrong with the bytes of a file, its absence too."""
    try:
        return sum_problems(folder, manifest, [name])
    except OSError as error:
        return [f"{name}: {reason_of(error)}"]


def _has(folder: Path, seal: str) -> bool:
    try:
        return seal_of((folder / MANIFEST_NAME).read_bytes()) == seal
    except OSError:
        return False
