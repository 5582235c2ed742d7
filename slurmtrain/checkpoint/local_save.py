"""Saves on the nodes' own disks, with a copy of every file on the next node: all ranks agree, each in a thread behind the training.

    1  each writer        writes its file into its node's staging folder, durable                                 (writer_process)
    2  all                hear of every file; rank 0 makes the manifest, or knows who failed
    3  rank to rank       the files of node i go to node i+1, of the last to the first; sums are compared on both ends
    4  rank 0             hears that all copies are durable; is the run still ours? Then all are told to publish
    5  one rank a node    writes the manifest, renames the folder; what is older than the newest two goes
    6  rank 0             hears that all have; `local.json` in the run folder tells people and the supervisor

Where anything fails, all nodes remove what they have of this save, and the run goes on. A kill at any moment leaves staging folders, which
the next attempt removes, or the checkpoint on some nodes: it is loaded only where all its files are there.

The group is one of its own, since collectives of training are under way on the others. A group that a time-out or a lost rank has broken
is made anew at the next save.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmtrain.checkpoint.committing import not_saved
from slurmtrain.checkpoint.group import Failure, captured, reason_of
from slurmtrain.checkpoint.peers import Into, Out, PeerGroup, exchange, receive_value, send_value
from slurmtrain.checkpoint.reports import Report, assemble
from slurmtrain.checkpoint.saver import Header, Outcome
from slurmtrain.clock import Clock, SystemClock
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.commit import OwnerCheck
from slurmtrain.store.local import LocalNewest, tell_newest
from slurmtrain.store.manifest import FileSum
from slurmtrain.store.scratch import LocalDir, going, prune, publish_local, sweep, withdraw
from slurmtrain.syscalls import SYSTEM, Syscalls, remove_tree
from slurmtrain.units import counted

REPORT_SLACK_S = 30.0
"""A writer that says nothing is given up by its rank first."""


@dataclass(frozen=True)
class Seat:
    """Where a rank is: rank = node * local_size + local. `nodes`: their names, in the order of the attempt."""

    nodes: tuple[str, ...]
    node: int
    local: int
    local_size: int

    @property
    def first(self) -> bool:
        """Whether this rank acts for its node."""
        return self.local == 0

    def rank(self, node: int) -> int:
        """The rank of this one's number on another node; nodes count on past the last."""
        return node % len(self.nodes) * self.local_size + self.local

    def name_of(self, rank: int) -> str:
        """A rank, with its node, for people."""
        return f"rank {rank} on {self.nodes[rank // self.local_size]}"


@dataclass(frozen=True)
class Ground:
    """What holds for all local saves of an attempt. `local`: of this node; `owner_check` is asked on rank 0."""

    run: RunDir
    local: LocalDir
    seat: Seat
    attempt: int
    timeout_s: float
    owner_check: OwnerCheck


class LocalSaves:
    """One save at a time. `make_group`: collective, all ranks; a new group. `kept`: (step, attempt) of what this node has; `whole`: steps
    of those that are whole over all nodes and count, the same on all ranks.

    `begin`, `report`, `busy` and `take` are for the thread that trains; none of them waits for another rank, but `begin` for a new group.
    """

    def __init__(
        self,
        ground: Ground,
        make_group: Callable[[], PeerGroup],
        kept: Sequence[tuple[int, int]] = (),
        whole: Iterable[int] = (),
        *,
        calls: Syscalls = SYSTEM,
        clock: Clock | None = None,
    ) -> None:
        self._ground, self._make_group, self._kept = ground, make_group, list(kept)
        self._whole = set(whole)
        self._calls, self._clock = calls, clock or SystemClock()
        self._group: PeerGroup | None = None
        self._words: queue.SimpleQueue[Report | Failure | None] = queue.SimpleQueue()
        self._awaited = False
        self._thread: threading.Thread | None = None
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self.failed = False
        """Whether the last save has failed, as far as this rank knows."""
        self.broken = False
        """Whether the group has to be made anew, as far as this rank knows."""
        self._notes: tuple[str, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether a save is under way on this rank."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def awaits_report(self) -> bool:
        """Whether nothing was reported yet for the save under way."""
        return self._awaited

    def has(self, step: int) -> bool:
        """Whether this step is whole already; the same on all ranks, unless one is `broken`."""
        return step in self._whole

    def open(self) -> None:
        """Collective: make the group ready; the first `begin` does it else."""
        if self._group is None:
            self._group = self._make_group()

    def staging(self, header: Header) -> Path:
        """Where the writers of this node put their files."""
        return self._ground.local.staging(header.step, header.attempt)

    def begin(self, header: Header, stall_s: float, *, renew: bool) -> None:
        """Collective, once nothing is under way on any rank. `renew`: some rank's group is broken; the same on all ranks.

        `stall_s`: what the save has cost this rank so far.
        """
        assert not self.busy
        if renew:
            if not self.broken and self._group is not None:
                self._group.close()
            self._group, self.broken = None, False
        self.open()
        assert self._group is not None
        self._words, self._awaited = queue.SimpleQueue(), True
        self._thread = threading.Thread(target=self._run, args=(self._group, header, stall_s), name="local-save", daemon=True)
        self._thread.start()

    def forget_after(self, step: int) -> None:
        """On each rank, when nothing is under way on any: the run has gone back to this step, what was saved of later ones goes.

        Raises OSError.
        """
        assert not self.busy
        later = [one for one, _ in self._kept if one > step]
        self._kept = [(one, attempt) for one, attempt in self._kept if one <= step]
        self._whole = {one for one in self._whole if one <= step}
        for one in later if self._ground.seat.first else ():
            withdraw(self._ground.local, one, self._calls)

    def report(self, word: Report | Failure | None) -> None:
        """What this rank's writer has written, or why not; None: another one writes for this rank. The first word counts."""
        if self._awaited:
            self._awaited = False
            self._words.put(word)

    def take(self) -> list[Outcome]:
        """What has ended since the last call, on rank 0; elsewhere nothing."""
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._outcomes.get_nowait())
        return found

    def wait(self, seconds: float) -> None:
        """Until the save under way has ended, or for so long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self, group: PeerGroup, header: Header, stall_s: float) -> None:
        """The thread of one save."""
        begun = self._clock.monotonic()
        size, notes, leads = 0, tuple[str, ...](), group.rank == 0
        if self.failed and self._ground.seat.first:
            with suppress(OSError):  # others of this node were still writing when it was discarded
                sweep(self._ground.local, header.attempt, self._calls, but=self.staging(header).name)
        done = self._kept_going(group, header)
        if isinstance(done, Failure):
            self._discard(header)
        else:
            size, notes = done
        self.failed = isinstance(done, Failure)
        if not self.failed:
            self._whole.add(header.step)
        if leads:
            why = not_saved(header.step, CheckpointError(f"local: {done.message}")) if isinstance(done, Failure) else ""
            seconds = self._clock.monotonic() - begun + stall_s
            told = Outcome(header.step, ok=not why, stall_s=stall_s, write_s=seconds, bytes=size, notes=notes, error=why, tier="local")
            self._outcomes.put(told)

    def _kept_going(self, group: PeerGroup, header: Header) -> tuple[int, tuple[str, ...]] | Failure:
        """As `_save`; a group that broke, or a rank that is gone, is a failure like any other."""
        try:
            return self._save(group, header)
        except Exception as error:  # noqa: BLE001 whatever it is, training goes on
            failure = Failure(reason_of(error), "CheckpointError")
        self.broken = True
        with suppress(Exception):
            group.close()  # or the others would wait for this rank until their time is over
        return failure

    def _save(self, group: PeerGroup, header: Header) -> tuple[int, tuple[str, ...]] | Failure:
        """Bytes of all files and notes, or the failure: the same on all ranks. Raises what the group raises."""
        word = self._word()
        made = self._agreed(group, word, lambda words: self._assembled(header, words))
        if isinstance(made, Failure):
            return made
        manifest, size = made
        copied = self._copied(group, header, word if isinstance(word, Report) else None)
        allowed = self._agreed(group, copied, lambda _: self._ground.owner_check())
        if isinstance(allowed, Failure):
            return allowed
        published = captured(lambda: self._publish(header, manifest)) if self._ground.seat.first else None
        ended = self._agreed(group, published, lambda notes: (size, self._told(header, notes)))
        if self._ground.seat.first and not isinstance(ended, Failure):
            self._prune(header)
        return ended

    def _word(self) -> Report | Failure | None:
        try:
            return self._words.get(timeout=self._ground.timeout_s + REPORT_SLACK_S)
        except queue.Empty:
            return Failure(f"no word from the writer within {self._ground.timeout_s:g} s", "CheckpointError")

    def _agreed(self, group: PeerGroup, mine: Any, conclude: Callable[[list[Any]], Any]) -> Any:
        """What rank 0 concludes of all ranks' answers, on every rank; the first Failure, its rank named, where there is one."""
        answers = group.gather(mine)
        return group.broadcast(None if answers is None else self._concluded(answers, conclude))

    def _concluded(self, answers: list[Any], conclude: Callable[[list[Any]], Any]) -> Any:
        failed = [(rank, one) for rank, one in enumerate(answers) if isinstance(one, Failure)]
        if failed:
            (rank, first), more = failed[0], len(failed) - 1
            others = f" (and {counted(more, 'more rank')})" if more else ""
            return Failure(f"{self._ground.seat.name_of(rank)}: {first.message}{others}", first.kind)
        return captured(lambda: conclude(answers))

    def _assembled(self, header: Header, words: Sequence[Report | None]) -> tuple[bytes, int]:
        manifest = assemble(header, [one for one in words if one is not None])
        return manifest.to_json(), manifest.total_bytes

    def _copied(self, group: PeerGroup, header: Header, mine: Report | None) -> Failure | None:
        """Send this rank's file to the next node, and take that of the node before. Raises what the group raises."""
        seat, staging = self._ground.seat, self.staging(header)
        if len(seat.nodes) == 1:
            return None
        to, source = seat.rank(seat.node + 1), seat.rank(seat.node - 1)
        sent = send_value(group, None if mine is None else (mine.file, mine.sums), to)
        theirs: tuple[str, FileSum] | None = receive_value(group, source)
        sent()
        out = None if mine is None else Out(staging / mine.file, mine.sums, to)
        into = None if theirs is None else Into(staging / theirs[0], theirs[1], source)
        with suppress(OSError):
            self._calls.mkdir(staging)
        done = exchange(group, out, into, calls=self._calls)
        why = done.sent or done.received
        return Failure(why, "CheckpointError") if why else None

    def _publish(self, header: Header, manifest: bytes) -> tuple[str, ...]:
        """On the first rank of a node; what of earlier ones could not be removed. Raises OSError."""
        publish_local(self._ground.local, self.staging(header), header.step, manifest, self._calls)
        self._kept = [(step, attempt) for step, attempt in self._kept if step != header.step] + [(header.step, header.attempt)]
        notes, self._notes = self._notes, ()
        return notes

    def _prune(self, header: Header) -> None:
        """On the first rank of a node, when all nodes have published."""
        gone = going(self._kept, header.step, header.attempt)
        self._kept = [(step, attempt) for step, attempt in self._kept if step not in gone]
        self._notes = tuple(prune(self._ground.local, gone, header.attempt, self._calls))

    def _told(self, header: Header, notes: Sequence[tuple[str, ...] | None]) -> tuple[str, ...]:
        """Rank 0 tells the run folder; notes of all nodes, the first alone where there are many."""
        all_ = [f"{self._ground.seat.name_of(rank)}: {note}" for rank, some in enumerate(notes) for note in some or ()][:1]
        try:
            tell_newest(self._ground.run, LocalNewest(header.step, header.attempt, header.t, self._ground.seat.nodes), self._calls)
        except OSError as error:
            all_.append(f"{self._ground.run.local_json}: {error.strerror or error}")
        return tuple(all_)

    def _discard(self, header: Header) -> None:
        """Remove what this node has of a save that failed; others of this node may still be writing: the next save sweeps after them."""
        if not self._ground.seat.first:
            return
        with suppress(OSError):
            remove_tree(self._calls, self.staging(header))
            if (header.step, header.attempt) in self._kept:
                self._kept.remove((header.step, header.attempt))
                withdraw(self._ground.local, header.step, self._calls)
