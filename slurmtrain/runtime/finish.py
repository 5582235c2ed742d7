"""How a rank ends: by agreement through a barrier with code 0, or by a fault with its record first and `os._exit(1)` at once.

A failing rank never waits: MPI_Finalize, a group's destructor or a worker's join would wait for peers that wait for it. Its exit
file is what the supervisor judges by; the traceback goes to the rank's own log, one line to stderr.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Literal, NoReturn

from slurmtrain.atomic import Disk, SystemDisk
from slurmtrain.errors import EXIT_CONFIG, EXIT_FAULT, EXIT_OK, LaunchError, UserError, one_line
from slurmtrain.rundir import AttemptDir, RunDir
from slurmtrain.runtime.world import Standing, World
from slurmtrain.telemetry.errorcause import cause_of_error, chain_of
from slurmtrain.telemetry.exitfile import ExitRecord, is_follower, peer_lost
from slurmtrain.telemetry.heartbeat import launcher_rank

LEAVE_WITHIN_S = 15.0
"""A failing rank is gone after this long even if the shared folder does not take its record."""


def leave(
    attempt: AttemptDir, world: World, kind: Literal["finished", "stopped"], *, step: int, reason: str = "", disk: Disk | None = None
) -> int:
    """End that all ranks agreed on: the record, a barrier, process groups and MPI closed; 0. Collective.

    Raises OSError when the record cannot be written.
    """
    record = ExitRecord(world.rank, kind, EXIT_OK, step, reason, world.node)
    write_record(attempt, record, disk or SystemDisk())
    world.comm.barrier()
    _close_groups()
    # Rank 0 holds the store that the others' groups look at while they close: it must not go first.
    world.comm.barrier()
    world.comm.finalize()
    return EXIT_OK


def exit_process(code: int) -> NoReturn:
    """End this process as C's exit does: the libraries' exit handlers run, the interpreter's teardown (most of a second) does not.

    MPICH tells its process manager in such a handler that the rank is done. A rank that ends without it looks lost to mpiexec, which
    then kills those that are a moment later. The interpreter stays locked, so that no thread of Python runs on.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.PyDLL(None).exit(code)
    raise AssertionError("exit came back")


def guarded(
    run: RunDir,
    attempt: int,
    fn: Callable[[Standing], int],
    *,
    environ: Mapping[str, str] | None = None,
    disk: Disk | None = None,
    exit_now: Callable[[int], object] = os._exit,
) -> int:
    """Run what a rank does and give its code; any exception becomes a record, a log and `os._exit(1)`.

    `fn` gets the rank's Standing, which `start_world` and the loop keep up to date.
    """
    faulthandler.enable()
    around = os.environ if environ is None else environ
    standing = Standing(launcher_rank(around), around.get("SLURMTRAIN_NODE", ""))
    try:
        return fn(standing)
    except BaseException as error:  # noqa: BLE001 also SystemExit and KeyboardInterrupt: peers would wait for ever
        late = threading.Timer(LEAVE_WITHIN_S, exit_now, (EXIT_FAULT,))
        late.daemon = True
        late.start()
        _tell(run.attempt(attempt), standing, error, disk or SystemDisk())
        late.cancel()
        exit_now(EXIT_FAULT)
        return EXIT_FAULT


def record_of(standing: Standing, error: BaseException) -> ExitRecord:
    """The exit record of an exception: `config` for a broken promise or a user's mistake, else `error`; a follower is marked."""
    if isinstance(error, (UserError, LaunchError)):
        words = one_line(str(error))
        return ExitRecord(standing.rank, "config", EXIT_CONFIG, standing.step, words, standing.node, "configuration")
    text = _words(error)
    follows = any(is_follower(_words(e)) for e in chain_of(error))
    words = one_line(peer_lost(text) if follows else text)
    return ExitRecord(
        standing.rank, "error", EXIT_FAULT, standing.step, words, standing.node, "network" if follows else cause_of_error(error)
    )


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def write_record(attempt: AttemptDir, record: ExitRecord, disk: Disk) -> None:
    """Publish a rank's exit file. Raises OSError, also where the run's folder is gone."""
    attempt.make(attempt.exit_dir)
    disk.write(attempt.exit_file(record.rank), record.to_json())


def _tell(attempt: AttemptDir, standing: Standing, error: BaseException, disk: Disk) -> None:
    """Record first, then log and stderr; a disk that fails must not keep the rank."""
    record = record_of(standing, error)
    try:
        write_record(attempt, record, disk)
        attempt.rank_log(standing.rank).write_text("".join(traceback.format_exception(error)))
    except OSError as failed:
        _say(f"rank {standing.rank}: its end could not be recorded: {failed}")
    where = f" on {standing.node}" if standing.node else ""
    _say(f"rank {standing.rank}{where}: {record.error}")


def _say(line: str) -> None:
    """One write for the whole line: the ranks of a node share one log."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _close_groups() -> None:
    import torch.distributed as dist  # noqa: PLC0415 `guarded` must work before torch is imported

    if dist.is_initialized():
        dist.destroy_process_group()
