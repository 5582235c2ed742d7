"""A program for test_kill and test_kill_async: saves checkpoints until it is killed. It never imports torch.

It reads one line of JSON a trial from stdin and forks a child for it (so that modules are loaded once). The child finds the newest
checkpoint, checks its content, and saves every 10 steps from there, as two ranks in threads.
stdout: `pid N`, `from S`, `begin S`, `done S`, `ended CODE`.

    {"run", "attempt", "steps", "die_at"}               while training stands still; `die_at` n: it kills itself at its n-th file
                                                        operation (open, mkdir, rename, remove, rmdir) below the run folder
    {"run", "attempt", "steps", "writer_dies_at": [..]} beside the training; `server N`, whose children writers are, `writer N`, `failed S`
                                                        besides; each rank's writer kills itself at that system call, 0: never
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from slurmtrain.checkpoint.forkserver import ForkServer
from slurmtrain.checkpoint.staged import AsyncSaver
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_verified
from tests.checkpoint.arrays import begin, save_step, source, terms, wrong_tensors
from tests.checkpoint.doors import faulty_door
from tests.checkpoint.staging import writer_pid
from tests.fakes.thread_group import run_ranks

WATCHED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}


class Shared(ForkServer):
    """One of the program's, which children use one after another."""

    @property
    def alive(self) -> bool:
        return True

    def close(self) -> None:
        return


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def die_at(count: int, below: str) -> None:
    left = [count]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in WATCHED and below in str(args[0]):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def resumed(run: RunDir) -> int:
    found = newest_verified(run.checkpoints)
    start = 0 if found is None else found.step
    assert found is None or wrong_tensors(found) == [], found
    say(f"from {start}")
    return start


def train(run: RunDir, attempt: int, steps: int) -> None:
    start = resumed(run)
    for step in range(start + 10, start + 10 * steps + 1, 10):
        say(f"begin {step}")
        outcomes = run_ranks(2, lambda group, step=step: save_step(run, step, group, attempt=attempt, keep=2))
        assert all(one.ok for one in outcomes), outcomes
        say(f"done {step}")


def train_beside(run: RunDir, attempt: int, steps: int, deaths: list[int], servers: list[Shared]) -> None:
    start = resumed(run)

    def tell(outcomes: list[Any], group: Any, saver: AsyncSaver, writers: set[int]) -> None:
        if saver._link._writer is not None and writer_pid(saver) not in writers:  # a fresh one
            writers.add(writer_pid(saver))
            say(f"writer {writer_pid(saver)}")
        for one in outcomes if group.rank == 0 else []:
            say(f"{'done' if one.ok else 'failed'} {one.step}")

    def body(group: Any) -> None:
        death = deaths[group.rank]
        door = faulty_door(cut_at=death, kill=True, torn=bool(death % 2)) if death else ""
        saver = AsyncSaver(terms(run), group, server=servers[group.rank], door=door, orphan_s=0.2)
        saver.prepare(source(0, group.rank, 2))
        writers: set[int] = set()
        tell([], group, saver, writers)
        group.barrier()
        for step in range(start + 10, start + 10 * steps + 1, 10):
            if group.rank == 0:
                say(f"begin {step}")
            begin(saver, step, group, attempt)
            tell([], group, saver, writers)
            for _ in range(step % 7):
                group.barrier()
                threading.Event().wait(0.002)
                tell(saver.poll(), group, saver, writers)
        tell(saver.wait(), group, saver, writers)
        saver.close()

    results = run_ranks(2, body)
    assert results == [None, None], results


def main() -> None:
    assert "torch" not in sys.modules
    servers: list[Shared] = []
    for line in sys.stdin:
        order = json.loads(line)
        deaths = order.get("writer_dies_at")
        if deaths is not None and not servers:
            servers += [Shared(), Shared()]
        pid = os.fork()
        if pid == 0:
            say(f"pid {os.getpid()}")  # by the child itself, so that it comes before anything else it says
            if order.get("die_at") is not None:
                die_at(order["die_at"], order["run"])
            for server in servers:
                say(f"server {server._process.pid}")
            run = RunDir(Path(order["run"]))
            if deaths is None:
                train(run, order["attempt"], order["steps"])
            else:
                train_beside(run, order["attempt"], order["steps"], deaths, servers)
            os._exit(0)
        say(f"ended {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


if __name__ == "__main__":
    main()
