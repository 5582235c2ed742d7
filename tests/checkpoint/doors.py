"""System calls of writers of asynchronous saves, for tests: `door=` names one of these functions and a word for it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from slurmtrain.syscalls import SystemCalls
from tests.fakes.syscalls import FakeSyscalls, Refusal

HERE = "tests.checkpoint.doors"


class Held(SystemCalls):
    """Making a checkpoint's file waits until there is a file `gate`; `gate.here` is made when a writer has come to it."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def create(self, path: Path) -> int:
        if path.suffix == ".h5":
            self.gate.with_suffix(".here").touch()
            until(self.gate.exists)
        return super().create(path)


def until(true, seconds=30.0):
    """Wait for it; fails when it does not come."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.002)


def held(word: str) -> Held:
    return Held(Path(word))


def held_door(gate: Path) -> str:
    return f"{HERE}:held:{gate}"


def faulty(word: str) -> FakeSyscalls:
    raw = json.loads(word)
    raw["refusals"] = [Refusal(**{**one, "calls": tuple(one["calls"])}) for one in raw.get("refusals", [])]
    return FakeSyscalls(None, **raw)


def faulty_door(**fields) -> str:
    """`fields`: of FakeSyscalls, refusals as objects."""
    return f"{HERE}:faulty:{json.dumps(fields)}"


def noting(word: str) -> SystemCalls:
    """Writes down what modules the writer has loaded when it makes a file."""

    class Noting(SystemCalls):
        def create(self, path: Path) -> int:
            Path(word).write_text(json.dumps(sorted(sys.modules)))
            return super().create(path)

    return Noting()


def noting_door(path: Path) -> str:
    return f"{HERE}:noting:{path}"


def dying_after_publish(word: str) -> SystemCalls:
    """Kills the writer in the first call after the rename that publishes; folders that others make durable are lines of a file."""

    class Dying(SystemCalls):
        published = False

        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            self.published = target.name.startswith("step-")

        def fsync_dir(self, path: Path) -> None:
            if self.published:
                os.kill(os.getpid(), signal.SIGKILL)
            super().fsync_dir(path)
            with open(word, "a") as file:
                file.write(f"{path.name}\n")

    return Dying()
