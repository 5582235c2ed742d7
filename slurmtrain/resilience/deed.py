"""`python -m slurmtrain.resilience.deed DEED RUN RANK`: what a drill does to a run, on one of its nodes. Touches nothing of another run.
Prints when it was done (seconds since the epoch), and what.

| deed | what |
|---|---|
| supervisor | SIGKILL to the supervisor that owner.json names, if it belongs to this job |
| agent | SIGKILL to this node's agent of the run |
| save | waits until a checkpoint is being written, then SIGKILL to the rank |
| shard | waits for a checkpoint, turns a byte over in the middle of its largest file, then SIGKILL to the rank |
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

from slurmtrain.clock import Clock, SystemClock
from slurmtrain.errors import SlurmtrainError
from slurmtrain.resilience.records import read_owner
from slurmtrain.rundir import RunDir, staging_attempt
from slurmtrain.store.listing import steps_present
from slurmtrain.store.manifest import MANIFEST_NAME
from slurmtrain.telemetry.heartbeat import heartbeat_dir, node_name, read_beats

LIMIT_S = 600.0
"""How long a checkpoint is waited for."""
_LOOK_S = 0.005
_AGENT = "slurmtrain.resilience.agent"
T = TypeVar("T")


def supervisor(run: RunDir, environ: Mapping[str, str]) -> str:
    """End the supervisor; what was done. Raises SlurmtrainError where there is none to be ended."""
    owner = read_owner(run.owner_json)
    job = environ.get("SLURM_JOB_ID", "")
    if owner is None or owner.ended:
        raise SlurmtrainError(f"{run.owner_json}: no supervisor runs")
    if not job or _environ(owner.pid).get("SLURM_JOB_ID") != job:
        raise SlurmtrainError(f"pid {owner.pid} is not the supervisor of job {job or '(none)'} on this node")
    os.kill(owner.pid, signal.SIGKILL)
    return f"supervisor (pid {owner.pid}) killed"


def agent(run: RunDir, environ: Mapping[str, str]) -> str:
    """End this node's agent."""
    node = node_name(environ)
    found = [one.pid for one in psutil.process_iter() if _is_agent(one, run, node)]
    if not found:
        raise SlurmtrainError(f"no agent of {run.path} runs on {node}")
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return f"agent of {node} (pid {' '.join(map(str, found))}) killed"


def save(run: RunDir, environ: Mapping[str, str], rank: int, clock: Clock) -> str:
    """End a rank while a checkpoint is written."""
    writing = _wait(clock, lambda: next(_staged(run), None), "no checkpoint was begun")
    return f"{_kill_rank(run, environ, rank)} while {writing} was written"


def shard(run: RunDir, environ: Mapping[str, str], rank: int, clock: Clock) -> str:
    """Damage the newest checkpoint, then end a rank."""
    step = _wait(clock, lambda: max(steps_present(run.checkpoints), default=None), "no checkpoint was made")
    damaged = damage(run.checkpoint(step))
    return f"{damaged.name} of step {step} damaged; {_kill_rank(run, environ, rank)}"


def damage(checkpoint: Path) -> Path:
    """Turn a byte over in the middle of the largest file; which it was."""
    files = [one for one in checkpoint.iterdir() if one.is_file() and one.name != MANIFEST_NAME]
    largest = max(files, key=lambda one: one.stat().st_size)
    with open(largest, "r+b") as file:
        file.seek(largest.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0xFF]))
    return largest


def _staged(run: RunDir) -> Iterator[str]:
    with suppress(OSError):
        yield from (one.name for one in run.checkpoints.iterdir() if staging_attempt(one.name) is not None)


def _kill_rank(run: RunDir, environ: Mapping[str, str], rank: int) -> str:
    number = run.attempt_numbers()[-1]
    beat = read_beats(heartbeat_dir(run.path, number, node_name(environ))).get(rank)
    if beat is None or _environ(beat.pid).get("SLURMTRAIN_RUN") != str(run.path):
        raise SlurmtrainError(f"rank {rank} of attempt {number} does not run on {node_name(environ)}")
    os.kill(beat.pid, signal.SIGKILL)
    return f"rank {rank} (pid {beat.pid}) killed"


def _is_agent(process: psutil.Process, run: RunDir, node: str) -> bool:
    with suppress(psutil.Error, OSError):
        line = process.cmdline()
        return _AGENT in line and str(run.path) in line and not line[0].endswith("srun") and node_name(process.environ()) == node
    return False


def _environ(pid: int) -> Mapping[str, str]:
    with suppress(psutil.Error, OSError):
        return psutil.Process(pid).environ()
    return {}


def _wait(clock: Clock, look: Callable[[], T | None], late: str) -> T:
    end = clock.monotonic() + LIMIT_S
    while (found := look()) is None:
        if clock.monotonic() > end:
            raise SlurmtrainError(f"{late} within {LIMIT_S:.0f} s")
        clock.sleep(_LOOK_S)
    return found


def main(argv: list[str]) -> int:
    """Do it, and say what was done."""
    what, run, rank, clock = argv[0], RunDir(Path(argv[1])), int(argv[2]), SystemClock()
    deeds: Mapping[str, Callable[[], str]] = {
        "supervisor": lambda: supervisor(run, os.environ),
        "agent": lambda: agent(run, os.environ),
        "save": lambda: save(run, os.environ, rank, clock),
        "shard": lambda: shard(run, os.environ, rank, clock),
    }
    try:
        done = deeds[what]()
        sys.stdout.write(f"{clock.time():.3f} {done}\n")
    except (SlurmtrainError, OSError) as error:
        sys.stderr.write(f"drill: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
