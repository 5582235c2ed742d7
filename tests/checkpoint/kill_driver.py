"""Talks to kill_writer.py for the tests that kill it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Program:
    """The program kill_writer.py."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, "-m", "tests.checkpoint.kill_writer"]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)

    def order(self, **order) -> None:
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self) -> tuple[str, int]:
        """The next word and number it says; fails when the program is gone."""
        line = self.process.stdout.readline()
        assert line, "the program has ended"
        word, number = line.split()
        return word, int(number)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()  # a child that still saves, after a failed assertion, ends when it next says something
        self.process.wait(30)
