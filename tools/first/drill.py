"""The drill: when half of the steps are done a node dies. Works beside the live display, in a thread of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.reader import read_events, steps

BARS = "▁▂▃▄▅▆▇█"


class Drill(threading.Thread):
    """Waits until half of the steps are done, then strikes once."""

    def __init__(self, run: Path) -> None:
        super().__init__(daemon=True)
        self.run_dir = RunDir(run)
        self.struck = ""
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.5):
            if self._halfway():
                self.struck = self.strike()
                return

    def _halfway(self) -> bool:
        try:
            total = json.loads(self.run_dir.job_json.read_text())["training"]["steps"]
        except (OSError, ValueError):
            return False
        done = steps(read_events(self.run_dir.events))
        return bool(done) and max(done) >= total // 2

    def attempt(self) -> dict[str, Any]:
        """The newest attempt's record."""
        number = self.run_dir.attempt_numbers()[-1]
        return dict(json.loads(self.run_dir.attempt(number).attempt_json.read_text()))

    def strike(self) -> str:
        """Kill; what was killed."""
        raise AssertionError

    def close(self) -> None:
        """The run has ended: repair what was broken."""
        self._over.set()
        self.join()


class NodeDrill(Drill):
    """Takes the last node of the job away: slurmd, steps and ranks, as if its power were gone."""

    def __init__(self, run: Path, devcluster: Sequence[str], env: Mapping[str, str]) -> None:
        super().__init__(run)
        self._devcluster, self._env = list(devcluster), dict(env)

    def strike(self) -> str:
        node = str(self.attempt()["nodes"][-1])
        subprocess.run([*self._devcluster, "fail", node], env=self._env, check=False, capture_output=True)
        print(f"\n*** drill: node {node} is dead ***\n", flush=True)
        return node

    def close(self) -> None:
        super().close()
        if self.struck:
            subprocess.run([*self._devcluster, "restore", self.struck], env=self._env, check=False, capture_output=True)
            print(f"drill: node {self.struck} is back")


class LocalDrill(Drill):
    """Without Slurm: kills the ranks of the last (emulated) node of this run."""

    def strike(self) -> str:
        node = str(self.attempt()["nodes"][-1])
        mine = {"SLURMTRAIN_NODE": node}
        for process in psutil.process_iter(["pid", "cmdline"]):
            try:
                environment = process.environ()
            except (psutil.Error, OSError):
                continue
            here = str(self.run_dir.path) in (process.info["cmdline"] or ())
            if here and all(environment.get(k) == v for k, v in mine.items()):
                os.kill(process.info["pid"], signal.SIGKILL)
        print(f"\n*** drill: the ranks of {node} are killed ***\n", flush=True)
        return node


def loss_curve(run: Path, width: int = 60) -> str:
    """Loss over steps as one line of bars for each attempt: what was trained before, and what after."""
    done = sorted(steps(read_events(RunDir(run).events)).items())
    if not done:
        return "no step was trained"
    losses = [float(event.fields["loss"]) for _, event in done]
    low, high = min(losses), max(losses)
    stride = max(1, -(-len(done) // width))
    rows: dict[int, str] = {}
    for column, index in enumerate(range(0, len(done), stride)):
        event = done[index][1]
        bar = BARS[round((losses[index] - low) / ((high - low) or 1.0) * (len(BARS) - 1))]
        rows[event.attempt] = rows.get(event.attempt, "").ljust(column) + bar
    lines = [f"loss {high:.3f} -> {low:.3f} over {done[-1][0]} steps, one line an attempt:"]
    return "\n".join(lines + [f"  attempt {attempt}  {row}" for attempt, row in sorted(rows.items())])
