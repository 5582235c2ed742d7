"""Where the supervisor's lines go: stdout, which is slurm-<jobid>.out in a batch job, and that file too in the foreground."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from slurmtrain.atomic import Disk
from slurmtrain.clock import Clock
from slurmtrain.resilience.lines import stamp


class Speaker:
    """Prints lines with date and time on stdout, and into a file where stdout is a person's terminal."""

    def __init__(self, clock: Clock, disk: Disk, tee: Path | None) -> None:
        self._clock, self._disk, self._tee = clock, disk, tee

    def __call__(self, line: str) -> None:
        text = f"{stamp(self._clock.time())} {line}\n"
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:
            self._terminal_is_gone()
        if self._tee is not None:
            try:
                self._disk.append(self._tee, text.encode())
            except OSError:
                self._tee = None

    @staticmethod
    def _terminal_is_gone() -> None:
        """A hung-up terminal must not end the run."""
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 for the rest of this process
