"""A program for test_kill: saves checkpoints until it is killed. It never imports torch.

It reads one line of JSON a trial from stdin, {"run", "attempt", "steps", "die_at"}, and forks a child for it (so that h5py is imported
once). The child finds the newest checkpoint, checks its content, and saves every 10 steps from there; `die_at` n: it kills itself at
its n-th file operation (open, mkdir, rename, remove, rmdir) below the run folder. stdout: `pid N`, `from S`, `begin S`, `done S`,
`ended CODE`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.load import find_checkpoint
from slurmtrain.rundir import RunDir
from tests.checkpoint.arrays import save_step, wrong_tensors
from tests.fakes.thread_group import run_ranks

WATCHED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}


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


def train(run: RunDir, attempt: int, steps: int) -> None:
    found = find_checkpoint(run, SoloGroup())
    start = 0 if found is None else found.step
    assert found is None or wrong_tensors(found) == [], found
    say(f"from {start}")
    for step in range(start + 10, start + 10 * steps + 1, 10):
        say(f"begin {step}")
        results = run_ranks(2, lambda group, step=step: save_step(run, step, group, attempt=attempt, keep=2))
        assert not [one for one in results if isinstance(one, Exception)], results
        say(f"done {step}")


def main() -> None:
    assert "torch" not in sys.modules
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            say(f"pid {os.getpid()}")  # by the child itself, so that it comes before anything else it says
            if order["die_at"] is not None:
                die_at(order["die_at"], order["run"])
            train(RunDir(Path(order["run"])), order["attempt"], order["steps"])
            os._exit(0)
        say(f"ended {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


if __name__ == "__main__":
    main()
