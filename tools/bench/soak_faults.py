"""What the soak does to a run: one fault after another, each on what trains just then.

| fault | what |
|---|---|
| kill, stop | SIGKILL, SIGSTOP to a rank |
| save | SIGKILL to a rank while a checkpoint is written |
| shard | a byte of the newest checkpoint turned over, then SIGKILL to a rank |
| exit, exception, nan | a rank to itself, by faults.json |
| node, host, freeze | a node loses power; the batch host does; a node stops answering. They come back when the run trains again |
| supervisor, agent | SIGKILL |
| term | TERM and USR2 to the batch script, a moment apart: a requeue |
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import psutil
from soak_cluster import SoakError, Trained

from slurmtrain.resilience.records import AttemptRecord, read_owner
from slurmtrain.store.listing import steps_present
from slurmtrain.store.manifest import MANIFEST_NAME
from slurmtrain.telemetry.faults import Fault, faults_bytes
from slurmtrain.telemetry.heartbeat import heartbeat_dir, read_beats, run_memory

KINDS = ("kill", "stop", "save", "shard", "exit", "exception", "nan", "node", "host", "freeze", "supervisor", "agent", "term")
BY_ITSELF = {"exit": 7.0, "exception": 1.0, "nan": 1.0}
"""Kinds that a rank does to itself, and the fault's value."""
MOST_SUPERVISORS = 3
"""The batch script starts a supervisor again so often in one start of the job."""


def drawn(rng: random.Random, count: int) -> list[str]:
    """Kinds in a random order, each as often as any other; after an agent's end, which makes no attempt, faults.json is not read again."""
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    rng.shuffle(kinds)
    for index in range(len(kinds) - 1):
        if kinds[index] == "agent" and kinds[index + 1] in BY_ITSELF:
            kinds[index], kinds[index + 1] = kinds[index + 1], kinds[index]
    return kinds


class Villain:
    """Does faults to a run. `pace_s`: of each step of rank 0, so that the run lasts; `down`: nodes that are to come back."""

    def __init__(self, trained: Trained, rng: random.Random, *, world: int, pace_s: float) -> None:
        self._trained, self._rng, self._world, self._pace_s = trained, rng, world, pace_s
        self._supervisors: dict[int, int] = {}
        self.down: list[str] = []

    def prepare(self, kind: str, step: int = 0) -> None:
        """Leave what the ranks of the next attempt are to meet, some steps after `step`."""
        faults = [Fault("slow", 0, 1, 0, self._pace_s)] if self._pace_s else []
        if kind in BY_ITSELF:
            faults.append(Fault(kind, self._rng.randrange(self._world), step + 5, 0, BY_ITSELF[kind]))  # type: ignore[arg-type]
        aside = self._trained.run.faults_json.with_suffix(".new")
        aside.write_bytes(faults_bytes(tuple(faults)))
        aside.replace(self._trained.run.faults_json)

    def do(self, kind: str, record: AttemptRecord) -> str:
        """The fault; what was done, in words."""
        if kind in BY_ITSELF:
            return "by the rank itself"
        deeds: Mapping[str, Callable[[AttemptRecord], str]] = {
            "kill": self._kill, "stop": self._stop, "save": self._in_a_save, "shard": self._shard, "node": self._node, "host": self._host,
            "freeze": self._freeze, "supervisor": self._supervisor, "agent": self._agent, "term": self._term,
        }  # fmt: skip
        return deeds[kind](record)

    def mend(self) -> None:
        """Nodes that were lost come back."""
        if self.down:
            self._trained.cluster.devcluster("restore", *self.down)
            self.down = []

    def _kill(self, record: AttemptRecord, number: int = signal.SIGKILL) -> str:
        rank = self._rng.randrange(record.world)
        node = record.node_of(rank)
        beat = read_beats(heartbeat_dir(self._trained.run.path, record.attempt, node)).get(rank)
        if beat is None:
            raise SoakError(f"rank {rank} of attempt {record.attempt} does not beat on {node}")
        with suppress(ProcessLookupError):
            os.kill(beat.pid, number)
        return f"rank {rank} on {node}"

    def _stop(self, record: AttemptRecord) -> str:
        return self._kill(record, signal.SIGSTOP)

    def _in_a_save(self, record: AttemptRecord) -> str:
        folder = self._trained.run.checkpoints

        def writes() -> bool:
            return any(one.name.endswith(".tmp") for one in folder.iterdir())

        self._trained.wait("a save", writes, poll_s=0.0005)
        return self._kill(record)

    def _shard(self, record: AttemptRecord) -> str:
        run = self._trained.run
        step = max(steps_present(run.checkpoints))
        files = [one for one in run.checkpoint(step).iterdir() if one.is_file() and one.name != MANIFEST_NAME]
        largest = max(files, key=lambda one: one.stat().st_size)
        with open(largest, "r+b") as file:
            file.seek(largest.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 0xFF]))
        return f"{largest.name} of step {step}; {self._kill(record)}"

    def _node(self, record: AttemptRecord) -> str:
        return self._lose("fail", self._other(record))

    def _host(self, record: AttemptRecord) -> str:
        return self._lose("fail", self._batch_host())

    def _freeze(self, record: AttemptRecord) -> str:
        """Not the batch host: Slurm itself decides what becomes of a job whose batch host is silent, when it comes to."""
        return self._lose("hang", self._other(record))

    def _batch_host(self) -> str:
        return self._trained.cluster.job(self._trained.job)["BatchHost"]

    def _other(self, record: AttemptRecord) -> str:
        host = self._batch_host()
        return self._rng.choice([node for node in record.nodes if node != host])

    def _lose(self, how: str, node: str) -> str:
        self.down.append(node)
        self._trained.cluster.devcluster(how, node)
        if how == "fail":  # what it held in memory is gone with its power; nodes that are emulated share one memory
            shutil.rmtree(run_memory(self._trained.run.path) / node, ignore_errors=True)
        return node

    def _supervisor(self, record: AttemptRecord) -> str:
        """Not more often than the batch script bears: then a requeue."""
        before = self._supervisors.get(record.restart_count, 0)
        if before >= MOST_SUPERVISORS:
            return f"no more in this start: {self._term(record)}"
        self._supervisors[record.restart_count] = before + 1
        owner = read_owner(self._trained.run.owner_json)
        if owner is None or owner.ended:
            raise SoakError("no supervisor runs")
        os.kill(owner.pid, signal.SIGKILL)
        return f"pid {owner.pid}"

    def _agent(self, record: AttemptRecord) -> str:
        found = agents_of(str(self._trained.run.path))
        if not found:
            raise SoakError("no agent runs")
        pid = self._rng.choice(sorted(found))
        os.kill(pid, signal.SIGKILL)
        return f"pid {pid}"

    def _term(self, record: AttemptRecord) -> str:
        for name in self._rng.sample(("TERM", "USR2"), 2):
            self._trained.cluster.run(["scancel", "--batch", f"--signal={name}", self._trained.job])
            time.sleep(self._rng.choice((0.0, 0.05)))
        return "to the batch script"


def agents_of(run: str) -> list[int]:
    """Processes of the run's agents, without the sruns that started them."""
    return [pid for pid, line in processes_of(run) if "slurmtrain.resilience.agent" in line and not line[0].endswith("srun")]


def processes_of(run: str) -> list[tuple[int, Sequence[str]]]:
    """(pid, command line) of what has the run's path in its command line, this process's own family apart."""
    found: list[tuple[int, Sequence[str]]] = []
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            line = process.cmdline()
            if process.pid not in mine and process.status() != psutil.STATUS_ZOMBIE and any(run in word for word in line):
                found.append((process.pid, line))
    return found
