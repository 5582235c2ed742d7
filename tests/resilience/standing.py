"""A rank that beats and then stands still somewhere: `standing.py FOLDER how`."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path

from slurmtrain.clock import SystemClock
from slurmtrain.telemetry.heartbeat import open_heart


def stand_still() -> None:
    _ = os.write(1, b"stands\n"), time.sleep(600)  # here


def hold_the_interpreter() -> None:
    _ = os.write(1, b"stands\n"), max(itertools.repeat(1))  # here: in C for ever, with the interpreter locked


def main(run: str, memory: str, how: str) -> None:
    heart, why = open_heart(Path(run), 1, os.environ, SystemClock(), Path(memory))
    assert not why, why
    heart.beat("step", step=3)
    {"sleep": stand_still, "lock": hold_the_interpreter}[how]()


if __name__ == "__main__":
    main(*sys.argv[1:])
