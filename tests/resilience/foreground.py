"""The supervisor of a run in the foreground, with the tiny trainer: for tests that signal it."""

import os
import sys
from pathlib import Path

from slurmtrain.resilience.supervisor import supervise
from slurmtrain.rundir import RunDir
from tests.resilience.runs import tiny_command

if __name__ == "__main__":
    run = RunDir(Path(sys.argv[1]))
    sys.exit(supervise(run, os.environ, foreground=True, command=tiny_command(run)).code)
