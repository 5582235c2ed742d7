"""A trainer of seconds, without MPI and torch: steps, events, checkpoints, stop file, exit records, and faults as data.

`behaviour.json` of the run folder: {"steps": 20, "step_s": 0.05, "save_every": 5, "save_s": 0,
"faults": [{"attempt": 1, "rank": 3, "step": 4, "do": "exit 7"}]}. Rank 0 trains; the others wait for its word, and for the death of
a peer, as in a collective. Faults: `exit N` (no record), `raise` (a record of its own), `config`, `kill` (SIGKILL), `deaf` (to a stop),
`stop` (SIGSTOP), `hang` (for ever in a step), `slow N` (its work takes N times as long as the others'). With `"together": true` rank 0
waits in each step until all others have come to it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from slurmtrain.atomic import SystemDisk
from slurmtrain.clock import SystemClock
from slurmtrain.resilience.records import read_attempt
from slurmtrain.rundir import RunDir
from slurmtrain.store.commit import open_staging, publish
from slurmtrain.store.listing import newest_durable_step
from slurmtrain.store.manifest import Manifest
from slurmtrain.store.verify import sums_of
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.exitfile import ExitRecord
from slurmtrain.telemetry.heartbeat import open_heart
from slurmtrain.telemetry.stopfile import read_stop

POLL_S = 0.03
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


class Rank:
    def __init__(self, run: RunDir) -> None:
        self.run, self.number = run, int(os.environ["SLURMTRAIN_ATTEMPT"])
        self.attempt = run.attempt(self.number)
        self.heart, _ = open_heart(run.path, self.number, os.environ, SystemClock())
        self.behaviour = json.loads((run.path / "behaviour.json").read_text())
        record = read_attempt(run, self.number)
        self.node = os.environ.get("SLURMTRAIN_NODE") or os.environ["SLURMD_NODENAME"]
        local = os.environ.get("SLURM_LOCALID") or str(int(os.environ["PMI_RANK"]) % record.tasks_per_node)
        self.rank = record.nodes.index(self.node) * record.tasks_per_node + int(local)
        self.world, self.step, self.told = record.world, 0, False
        self.heart.become(self.rank)
        signal.signal(signal.SIGTERM, self._tell)
        signal.signal(signal.SIGUSR2, self._tell)
        self._pid(self.rank).write_text(str(os.getpid()))
        for _ in range(self.behaviour.get("children", 0)):
            subprocess.Popen([sys.executable, "-S", "-c", STUBBORN], start_new_session=True)

    def _tell(self, *_: object) -> None:
        self.told = True

    def _pid(self, rank: int) -> Path:
        return self.attempt.path / f"pid-{rank}"

    def emit(self, kind: str, **fields: object) -> None:
        SystemDisk().append(self.run.event_file(0), Event(kind, time.time(), self.number, self.rank, fields).to_line().encode())

    def leave(self, kind: str, code: int, error: str = "") -> None:
        SystemDisk().write(self.attempt.exit_file(self.rank), ExitRecord(self.rank, kind, code, self.step, error, self.node).to_json())
        print(f"rank {self.rank} {kind} {error}", flush=True)
        if not code:
            self.heart.close()
        os._exit(1 if code else 0)

    def fault(self) -> str:
        """What this rank is to do wrong at this step, if anything."""
        for one in self.behaviour.get("faults", ()):
            if (one.get("attempt", 1), one["rank"]) == (self.number, self.rank) and self.step >= one["step"]:
                return one["do"]
        return ""

    def meet_fault(self) -> None:
        do = self.fault()
        if do.startswith("exit "):
            os._exit(int(do.split()[1]))
        if do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if do == "hang":
            self.heart.beat("step")
            time.sleep(3600)
        if do == "raise":
            self.leave("error", 1, "ValueError: a fault on purpose")
        if do == "config":
            self.leave("config", 78, "the world is not what was promised")
        for rank in range(self.world):
            if rank != self.rank and self._dead(rank):
                self.leave("error", 1, "peer lost: RuntimeError: Connection closed by peer")

    def _dead(self, rank: int) -> bool:
        try:
            return psutil.Process(int(self._pid(rank).read_text())).status() == psutil.STATUS_ZOMBIE
        except (OSError, ValueError):
            return False
        except psutil.NoSuchProcess:
            return not (self.attempt.path / "agreed").exists()

    def wait_for_all(self) -> None:
        """As in the step's reduction."""
        self.heart.beat("wait")
        for rank in range(1, self.world):
            while not self._there(rank):
                self.meet_fault()
                time.sleep(POLL_S)
        self.heart.beat("step")

    def _there(self, rank: int) -> bool:
        with suppress(OSError, ValueError):
            return int((self.attempt.path / f"at-{rank}").read_text()) >= self.step
        return False

    def work_s(self) -> float:
        """What its own computing took, as this rank tells it."""
        do = self.fault()
        return self.behaviour["step_s"] * (float(do.split()[1]) if do.startswith("slow ") else 1.0)

    def save(self) -> None:
        start = time.monotonic()
        self.heart.beat("save")
        staging = open_staging(self.run, self.step, self.number, lambda: None)
        if staging is not None:
            (staging / "rank-00000.h5").write_bytes(b"x" * 64)
            time.sleep(self.behaviour.get("save_s", 0))
            files = {"rank-00000.h5": sums_of(staging / "rank-00000.h5")}
            publish(self.run, staging, Manifest(self.step, self.number, self.step, {}, files, {}), lambda: None)
        self.emit("save", step=self.step, seconds=time.monotonic() - start, bytes=64)
        self.heart.beat("step")

    def agree(self, kind: str, reason: str = "") -> None:
        SystemDisk().write(self.attempt.path / "agreed", json.dumps([kind, self.step, reason]).encode())
        self.leave(kind, 0, reason)

    def train(self) -> None:
        resumed = newest_durable_step(self.run.checkpoints)
        self.step = resumed or 0
        self.heart.beat("step", step=self.step)
        self.emit("start", world=self.world, layout={}, resumed_from=resumed)
        while self.step < self.behaviour["steps"]:
            self.meet_fault()
            time.sleep(self.behaviour["step_s"])
            self.step += 1
            (self.attempt.path / "step").write_text(str(self.step))
            self.heart.beat("step", step=self.step, work_s=self.work_s())
            if self.behaviour.get("together"):
                self.wait_for_all()
            self.emit(
                "step",
                step=self.step,
                loss=5 - self.step / 100,
                grad_norm=1.0,
                lr=3e-4,
                tokens=self.step * 64,
                step_s=self.behaviour["step_s"],
            )
            reason = read_stop(self.attempt.stop) or ("requeue" if self.told else None)
            stops = reason is not None and self.fault() != "deaf" and self.step < self.behaviour["steps"]
            if stops or self.step % self.behaviour["save_every"] == 0:
                self.save()
            if stops:
                self.emit("stop", step=self.step, reason=reason)
                self.agree("stopped", reason)
        if self.step % self.behaviour["save_every"]:
            self.save()
        self.emit("finish", step=self.step)
        self.agree("finished")

    def follow(self) -> None:
        while True:
            with suppress(OSError, ValueError):
                before, self.step = self.step, int((self.attempt.path / "step").read_text())
                if self.step != before:
                    (self.attempt.path / f"at-{self.rank}").write_text(str(self.step))
                    self.heart.beat("wait", step=self.step, work_s=self.work_s())
            with suppress(OSError, ValueError):
                kind, self.step, reason = json.loads((self.attempt.path / "agreed").read_text())
                self.leave(kind, 0, reason)
            self.meet_fault()
            time.sleep(POLL_S)


if __name__ == "__main__":
    rank = Rank(RunDir(Path(sys.argv[1])))
    print(f"rank {rank.rank} on {rank.node}", flush=True)
    rank.train() if rank.rank == 0 else rank.follow()
