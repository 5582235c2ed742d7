"""Which files a node lacks, and who brings them: node to node, in rounds in which no rank sends or receives more than one file.

A node that has received a file passes it on: one that all nodes want (replicas) takes as many rounds as the number of nodes has binary
digits, whoever holds it.

>>> rounds = plan_transfers([{"a"}, {"a"}, {"a"}, {"a"}], {"a": (0,)}, lanes=1)
>>> [[(one.source, one.target) for one in some] for some in rounds]
[[(0, 1)], [(1, 2), (0, 3)]]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.boxes import Part
from slurmtrain.checkpoint.local_save import Seat
from slurmtrain.checkpoint.peers import Exchanged, Into, Out, PeerGroup, exchange
from slurmtrain.store.manifest import Manifest, Tensors
from slurmtrain.syscalls import Syscalls


@dataclass(frozen=True)
class Transfer:
    """A file on its way from one node to another, between the ranks of number `lane` on both."""

    file: str
    source: int
    target: int
    lane: int


def files_of(manifest: Manifest, parts: Iterable[Part]) -> set[str]:
    """Files that hold elements of these parts. Raises CorruptCheckpointError."""
    tensors, found = manifest.tensors, set[str]()
    for part in parts:
        if part.name in tensors and part.box.volume:
            near = tensors.near(part.name, part.box) if isinstance(tensors, Tensors) else tensors[part.name].boxes
            found.update(one.file for one in near)
    return found


def plan_transfers(needed: Sequence[AbstractSet[str]], holders: Mapping[str, Sequence[int]], lanes: int) -> list[list[Transfer]]:
    """Rounds that bring each node the files it needs. `holders`: the nodes that have a file; each file has one at least."""
    have = {file: set(nodes) for file, nodes in holders.items()}
    pending = sorted((file, node) for node, files in enumerate(needed) for file in files if node not in have[file])
    lane_of = {file: i % lanes for i, file in enumerate(sorted({file for file, _ in pending}))}
    sends: dict[tuple[int, int], int] = {}
    rounds: list[list[Transfer]] = []
    while pending:
        sending, receiving, this, later = set[tuple[int, int]](), set[tuple[int, int]](), list[Transfer](), list[tuple[str, int]]()
        for file, node in pending:
            lane = lane_of[file]
            idle = [one for one in have[file] if (one, lane) not in sending]
            if not idle or (node, lane) in receiving:
                later.append((file, node))
                continue
            source = min(idle, key=lambda one: (sends.get((one, lane), 0), one))
            sends[source, lane] = sends.get((source, lane), 0) + 1
            sending.add((source, lane))
            receiving.add((node, lane))
            this.append(Transfer(file, source, node, lane))
        for one in this:
            have[one.file].add(one.target)
        rounds.append(this)
        pending = later
    return rounds


@dataclass(frozen=True)
class Trouble:
    """A transfer that failed at this end: the file on that node is not good (`sent`), or did not come to be."""

    file: str
    node: int
    why: str
    sent: bool


class Carrier:
    """Carries transfers out, for the rank that it belongs to. `folder`: where this node's files of the checkpoint lie."""

    def __init__(self, group: PeerGroup, seat: Seat, folder: Path, manifest: Manifest, calls: Syscalls) -> None:
        self._group, self._seat, self._folder, self._manifest, self._calls = group, seat, folder, manifest, calls

    def carry_out(self, rounds: Sequence[Sequence[Transfer]]) -> list[Trouble]:
        """Send and receive what falls to this rank. A file appears under its name when it is whole. Raises what the group raises."""
        troubles, seat = [], self._seat
        for number in rounds:
            mine = [one for one in number if one.lane == seat.local]
            out = next((one for one in mine if one.source == seat.node), None)
            into = next((one for one in mine if one.target == seat.node), None)
            done = self._exchanged(out, into)
            if out is not None and done.sent:
                troubles.append(Trouble(out.file, seat.node, done.sent, sent=True))
            if into is not None and done.received:
                troubles.append(Trouble(into.file, seat.node, done.received, sent=False))
        return troubles

    def _exchanged(self, out: Transfer | None, into: Transfer | None) -> Exchanged:
        folder, files = self._folder, self._manifest.files
        going = None if out is None else Out(folder / out.file, files[out.file], self._seat.rank(out.target))
        coming = None
        if into is not None:
            coming = Into(folder / f".{into.file}.tmp", files[into.file], self._seat.rank(into.source))
            with suppress(OSError):
                self._calls.unlink(coming.path)
        done = exchange(self._group, going, coming, chunk_bytes=self._manifest.chunk_bytes, calls=self._calls)
        if into is None or coming is None or done.received:
            return done
        try:
            self._calls.rename(coming.path, folder / into.file)
            self._calls.fsync_dir(folder)
        except OSError as error:
            return Exchanged(done.sent, f"{folder / into.file}: {error.strerror or error}")
        return done
