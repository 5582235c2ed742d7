"""The fake of slurmtrain.steps.launcher.StepLauncher: a script of the test in a thread for each start, or plain local processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from slurmtrain.errors import LaunchError
from slurmtrain.steps.launcher import StepSpec

KILLED = -9


@dataclass
class FakeRun:
    """What a script gets. `ending` is set when the step is to end, `killed` when it did not in time; what it returns is the code."""

    spec: StepSpec
    number: int
    ending: threading.Event = field(default_factory=threading.Event)
    killed: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)

    def write(self, text: str, node: int = 0) -> None:
        """Into the log of a node of the step."""
        with open(str(self.spec.output).replace("%n", f"{node:03d}"), "a") as log:
            log.write(text)

    def say(self, text: str) -> None:
        """Words of the launcher itself."""
        self.said.append(text)


Script = Callable[[FakeRun], int]


class FakeStep:
    """A script that runs in a thread."""

    def __init__(self, run: FakeRun, script: Script) -> None:
        self.run = run
        self._rc: int | None = None
        self._thread = threading.Thread(target=self._work, args=(script,), daemon=True)
        self._thread.start()

    def _work(self, script: Script) -> None:
        try:
            rc = script(self.run)
        except Exception as error:  # noqa: BLE001 a fault of the script is a step that failed
            self.run.say(f"script: {error!r}")
            rc = 1
        self._rc = rc

    @property
    def pid(self) -> int:
        return 100000 + self.run.number

    def poll(self) -> int | None:
        if self.run.killed.is_set():
            return KILLED
        return None if self._thread.is_alive() else self._rc

    def wait(self, timeout_s: float | None = None) -> int | None:
        self._thread.join(30.0 if timeout_s is None else timeout_s)
        return self.poll()

    def words(self) -> str:
        return "\n".join(self.run.said)

    def end(self, grace_s: float) -> None:
        self.run.ending.set()
        self._thread.join(grace_s)
        if self._thread.is_alive():
            self.run.killed.set()

    def abandon(self) -> None:
        self.run.killed.set()


class FakeLauncher:
    """`scripts`: one for each start, the last one from then on; none: each task is a local process, without MPI. `missing`: not there."""

    def __init__(self, scripts: Sequence[Script] = (), *, missing: bool = False) -> None:
        self._scripts, self._missing = list(scripts), missing
        self.specs: list[StepSpec] = []
        self.steps: list[FakeStep] = []

    def argv(self, spec: StepSpec) -> list[str]:
        return ["fake", f"--ntasks={spec.tasks}", *spec.command]

    def start(self, spec: StepSpec) -> FakeStep:
        if self._missing:
            raise LaunchError("fake cannot be started: No such file or directory: fake")
        if not spec.output.parent.is_dir():
            raise LaunchError(f"no folder for the log of the ranks: {spec.output.parent}")
        self.specs.append(spec)
        script = local_processes
        if self._scripts:
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        step = FakeStep(FakeRun(spec, len(self.specs)), script)
        self.steps.append(step)
        return step

    def end_left(self, spec: StepSpec, grace_s: float) -> bool:
        """Those that this very launcher started, too: it has no other process."""
        left = [step for step in self.steps if step.run.spec == spec and step.poll() is None]
        for step in left:
            step.end(grace_s)
        return bool(left)


def local_processes(run: FakeRun) -> int:
    """Every task as a process of its own; the first code that is not 0."""
    children: list[subprocess.Popen[bytes]] = []
    for index, node in enumerate(run.spec.nodes):
        for _ in range(run.spec.tasks_per_node):
            try:
                children.append(_start_task(run.spec, index, node))
            except OSError as error:
                run.say(f"fake: {error.strerror}: {error.filename}")
                return 2
    asked = False
    while any(child.poll() is None for child in children):
        if run.ending.wait(0.02) and not asked:
            asked = True
            _signal_all(children, signal.SIGTERM)
        if asked and run.killed.wait(0.02):
            _signal_all(children, signal.SIGKILL)
    return next((child.returncode for child in children if child.returncode), 0)


def _start_task(spec: StepSpec, index: int, node: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, **spec.environment, "SLURMTRAIN_NODE": node}
    with open(str(spec.output).replace("%n", f"{index:03d}"), "ab") as log:
        return subprocess.Popen(list(spec.command), env=env, cwd=spec.cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _signal_all(children: Sequence[subprocess.Popen[bytes]], signum: int) -> None:
    """To the tasks; SIGKILL also to all that they started."""
    for child in children:
        if child.poll() is None:
            below = psutil.Process(child.pid).children(recursive=True) if signum == signal.SIGKILL else []
            for process in below:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signum)
            child.send_signal(signum)


def log_text(output: Path) -> str:
    """All logs of a step, whatever node they name."""
    return "".join(path.read_text() for path in sorted(output.parent.glob(output.name.replace("%n", "*"))))
