"""`python -m slurmtrain.train RUN`: one rank of the attempt SLURMTRAIN_ATTEMPT.

torch is imported only once the world is known to be whole: what is wrong with the start shows in seconds. The collector sleeps
while modules are loaded (a tenth of their time or more), and a rank that has left skips the interpreter's teardown (most of a second).
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

from slurmtrain.checkpoint.forkserver import start_forkserver
from slurmtrain.clock import SystemClock
from slurmtrain.config.stored import read_job
from slurmtrain.errors import SlurmtrainError
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.bootstrap import start_world
from slurmtrain.runtime.finish import exit_process, guarded, leave
from slurmtrain.runtime.flight import answer_flights
from slurmtrain.runtime.identity import attempt_number
from slurmtrain.runtime.startup import Startup, process_age_s
from slurmtrain.runtime.world import Standing
from slurmtrain.telemetry.heartbeat import heartbeat_dir, node_name, open_heart
from slurmtrain.telemetry.sink import EventSink
from slurmtrain.train.stopping import StopFlag, Watcher, install_handlers


def main(argv: list[str]) -> int:
    """Train; the code of the process. A fault does not return: it leaves through `os._exit(1)` with its record written."""
    if len(argv) != 2:
        sys.stderr.write("usage: python -m slurmtrain.train RUN\n")
        return 2
    gc.disable()
    run = RunDir(Path(argv[1]))
    flag = StopFlag()
    install_handlers(flag)
    try:
        attempt = attempt_number(os.environ)
    except SlurmtrainError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    heart, unheard = open_heart(run.path, attempt, os.environ, SystemClock())

    def fn(standing: Standing) -> int:
        standing.heart = heart
        return train(run, attempt, flag, standing, unheard)

    return guarded(run, attempt, fn)


def train(run: RunDir, attempt: int, flag: StopFlag, standing: Standing, unheard: str) -> int:
    """Join the world, train, leave. `unheard`: why nobody hears this rank's heart, where that is so."""
    clock = SystemClock()
    startup = Startup(clock, process_age_s())
    forkserver = start_forkserver() if saves_beside(run) else None
    world = start_world(run, os.environ, standing, startup.passed)
    with suppress(OSError):  # no memory for it: the heart has said so
        answer_flights(heartbeat_dir(run.path, attempt, node_name(os.environ)))

    from slurmtrain.train.loop import Loop  # noqa: PLC0415 torch only from here on
    from slurmtrain.train.session import open_session  # noqa: PLC0415

    watcher = Watcher(run, attempt, flag, clock) if world.rank == 0 else None
    if watcher is not None:
        watcher.start()
    startup.passed("python")
    session = open_session(run, world, flag, clock, forkserver, heart=standing.heart)
    sink = EventSink(run.event_file(world.node_index), clock, attempt, world.rank) if world.local_rank == 0 else None
    if sink is not None and unheard:
        sink.emit("note", text=unheard)
    gc.freeze()
    gc.enable()
    ending = Loop(session, standing, sink, clock, startup).run()
    if watcher is not None:
        watcher.end()
    code = leave(run.attempt(attempt), world, ending.kind, step=ending.step, reason=ending.reason)
    standing.heart.close()
    return code


def saves_beside(run: RunDir) -> bool:
    """Whether the job saves by processes of their own, whose parent must be there before MPI and CUDA are."""
    try:
        wish = read_job(run.job_json).checkpoint
    except SlurmtrainError:
        return False  # whoever reads the job next says what is wrong
    return wish.mode == "async" or wish.local


if __name__ == "__main__":
    exit_process(main(sys.argv))
