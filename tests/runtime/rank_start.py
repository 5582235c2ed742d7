"""A rank of these tests: join the world of the run folder in argv, leave by agreement; a failure says whether torch was imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from slurmtrain.rundir import RunDir
from slurmtrain.runtime.bootstrap import start_world
from slurmtrain.runtime.finish import exit_process, guarded, leave
from slurmtrain.runtime.world import Standing


def exit_now(code: int) -> None:
    sys.stdout.write("torch was imported\n" if "torch" in sys.modules else "torch was not imported\n")
    sys.stdout.flush()
    exit_process(code)


def main() -> int:
    run = RunDir(Path(sys.argv[1]))

    def train(standing: Standing) -> int:
        world = start_world(run, os.environ, standing)
        return leave(run.attempt(1), world, "finished", step=world.local_rank)

    return guarded(run, 1, train, exit_now=exit_now)


if __name__ == "__main__":
    sys.exit(main())
