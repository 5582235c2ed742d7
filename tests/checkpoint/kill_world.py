"""A program for test_kill_world: ranks in processes of their own, which save beside their training until they are killed.

It reads one line of JSON a trial from stdin and forks the ranks; they begin when their numbers have been said. Rank 0 finds the newest
checkpoint and checks the values of all; each save is of the values at the call, for training changes them in place right after it.
When one rank ends otherwise than it should, the others are killed, as the launcher of a job does. stdout: `pid RANK N`, `writer RANK N`,
`from 0 STEP`, `wrong 0 STEP`, `begin 0 STEP`, `done 0 STEP`, `failed 0 STEP`, `server RANK N`, `ended 0 CODE` (0: all ranks did well).

    {"run", "attempt", "ranks", "sizes", "steps", "door", "grace_s"}         `sizes`: of the runs of ranks that share a writer, [] : none do
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from slurmtrain.checkpoint.forkserver import ForkServer
from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.saver import ArraySource, Piece
from slurmtrain.checkpoint.staged import AsyncSaver
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import Found, newest_verified, steps_present
from slurmtrain.store.verify import read_manifest
from tests.checkpoint.arrays import SHAPES, cut, header, rows, terms, values, wrong_tensors
from tests.checkpoint.pipe_group import PipeGroup, pairs_of
from tests.checkpoint.staging import writer_pid


class Shared(ForkServer):
    """One of the program's, which ranks use one after another."""

    @property
    def alive(self) -> bool:
        return True

    @property
    def usable(self) -> bool:
        """Alive, and with no answer left that a rank, killed meanwhile, has not read."""
        return self._process.poll() is None and not select.select([self._wire._end], [], [], 0.0)[0]

    def close(self) -> None:
        return


def say(word: str, rank: int, number: int) -> None:
    os.write(1, f"{word} {rank} {number}\n".encode())


class Training:
    """A rank's part of the state: the same arrays at every step."""

    def __init__(self, rank: int, size: int) -> None:
        boxes = {name: rows(shape, rank, size) for name, shape in SHAPES.items()}
        self._held = {name: (box, np.zeros(box.shape, np.float32)) for name, box in boxes.items() if box is not None}
        self.source = ArraySource([Piece(name, SHAPES[name], box, "float32", array) for name, (box, array) in self._held.items()])

    def at(self, step: int) -> None:
        for name, (box, array) in self._held.items():
            array[...] = cut(values(name, step), box)


def begun(run: RunDir) -> int:
    """The step of the newest; all that are listed are looked at."""
    for step in steps_present(run.checkpoints):
        folder = run.checkpoint(step)
        try:
            wrong = wrong_tensors(Found(step, folder, read_manifest(folder)))
        except CheckpointError:
            wrong = [""] if folder.exists() else []  # a writer of the last attempt has removed it
        if wrong:
            say("wrong", 0, step)
    found = newest_verified(run.checkpoints)
    return 0 if found is None else found.step


def train(group: PipeGroup, mates: Any, order: dict[str, Any], server: ForkServer) -> None:
    run, rank = RunDir(Path(order["run"])), group.rank
    start = group.broadcast(begun(run) if rank == 0 else None)
    state, writers = Training(rank, group.size), set[int]()
    saver = AsyncSaver(terms(run, timeout_s=20.0), group, mates, server=server, door=order["door"], orphan_s=0.4)

    def heard(outcomes: list[Any], now: int = 0) -> bool:
        """Whether the save of step `now` has failed here."""
        if saver._link._writer is not None and writer_pid(saver) not in writers:
            writers.add(writer_pid(saver))
            say("writer", rank, writer_pid(saver))
        for one in outcomes if rank == 0 else []:
            say("done" if one.ok else "failed", 0, one.step)
        return any(not one.ok and one.step == now for one in outcomes)

    saver.prepare(state.source)
    heard([])
    group.barrier()
    if rank == 0:
        say("from", 0, start)
    for step in range(start + 10, start + 10 * order["steps"] + 1, 10):
        state.at(step)
        if rank == 0:
            say("begin", 0, step)
        saver.begin(header(step, group.size, order["attempt"]), state.source)
        heard([])
        for more in range(1, 1 + step % 7):
            state.at(step + more)
            if group.highest(int(heard(saver.poll(), step))):
                saver.fail("a writer has failed")
            threading.Event().wait(0.003)
    heard(saver.wait())
    saver.close()


def rank_main(rank: int, order: dict[str, Any], meshes: list[tuple[list[int], Any]], go: int, server: ForkServer) -> None:
    """`meshes`: (ranks, pairs of ends) of the world, then of each run of ranks that share a writer."""
    code = 3
    try:
        found = [PipeGroup(rank, ranks, pairs) if rank in ranks else _closed(pairs) for ranks, pairs in meshes]
        world, *mates = [one for one in found if one is not None]
        os.read(go, 1)
        train(world, mates[0] if mates else SoloGroup(), order, server)
        code = 0
    except EOFError:
        code = 4  # a peer is gone
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


def _closed(pairs: Any) -> None:
    for ends in pairs.values():
        for end in ends:
            end.close()


def trial(order: dict[str, Any], servers: dict[int, Shared]) -> int:
    size, sizes = order["ranks"], order["sizes"]
    for rank in range(size):
        if rank not in servers or not servers[rank].usable:
            if rank in servers:
                ForkServer.close(servers[rank])
            servers[rank] = Shared()
        say("server", rank, servers[rank]._process.pid)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    groups = [[*range(size)], *([*range(a, a + n)] for a, n in zip(starts, sizes, strict=True))]
    pairs, (waits, go) = pairs_of(groups), os.pipe()
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.close(go)
            rank_main(rank, order, [*zip(groups, pairs, strict=True)], waits, servers[rank])
        pids.append(pid)
    for one in pairs:
        _closed(one)
    for rank, pid in enumerate(pids):
        say("pid", rank, pid)
    os.write(go, bytes(size))
    code = _watched(pids, order["grace_s"])
    for fd in (waits, go):
        os.close(fd)
    return code


def _watched(pids: list[int], grace_s: float) -> int:
    """0 when all ranks have ended well. After one has not, the others have so long, and are killed then."""
    left, code, poll = {os.pidfd_open(pid): pid for pid in pids}, 0, select.poll()
    for fd in left:
        poll.register(fd, select.POLLIN)
    while left:
        ended = poll.poll(None if not code else grace_s * 1000)
        for fd, _ in ended:
            code |= int(os.waitpid(left.pop(fd), 0)[1] != 0)
            poll.unregister(fd)
            os.close(fd)
        for fd in left if code and not ended else ():
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    return code


def main() -> None:
    assert "torch" not in sys.modules
    servers: dict[int, Shared] = {}
    for line in sys.stdin:
        say("ended", 0, trial(json.loads(line), servers))


if __name__ == "__main__":
    main()
