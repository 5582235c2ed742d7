"""Real probes on this machine: one process for each emulated node, forked from one that has torch, under a real conductor."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from slurmtrain.clock import SystemClock
from slurmtrain.preflight.conductor import Conductor
from slurmtrain.preflight.probing import Member, probe_environment
from tests.mpi_world import cpu_site, run_world


def be_probe(where: str, pid_file: str) -> None:
    """Runs in the process; ends when the conductor is gone."""
    from slurmtrain.runtime.probe.__main__ import main

    Path(pid_file).write_text(str(os.getpid()))
    main([where])


class ProbeStage:
    """See Stage of the conformance tests. `env`: added to that of the probes."""

    def __init__(self, folder: Path, nodes: tuple[str, ...], env: dict[str, str] | None = None) -> None:
        self.probes = Conductor(nodes, 1, SystemClock(), address="127.0.0.1")
        self._folder, self._env = folder, {**probe_environment(cpu_site(1), self.probes.token, 1), **(env or {})}
        self._threads: list[threading.Thread] = []
        for node in nodes:
            self.start((node, 0))

    def start(self, member: Member) -> None:
        args = (f"127.0.0.1:{self.probes.port}", str(self._folder / member[0]))
        more = {"nodes": [member[0]], "tasks_per_node": 1, "env": self._env, "check": False, "timeout_s": 300}
        thread = threading.Thread(target=run_world, args=(be_probe, *args), kwargs=more)
        thread.start()
        self._threads.append(thread)

    def pid(self, member: Member) -> int:
        return int((self._folder / member[0]).read_text())

    def hang(self, member: Member) -> None:
        os.kill(self.pid(member), signal.SIGSTOP)

    def resume(self, member: Member) -> None:
        os.kill(self.pid(member), signal.SIGCONT)

    def die(self, member: Member) -> None:
        os.kill(self.pid(member), signal.SIGKILL)

    def close(self) -> float:
        """Seconds until all probes have left."""
        began = time.monotonic()
        self.probes.close()
        for file in self._folder.iterdir():  # a test that failed may have left one stopped
            with suppress(ProcessLookupError):
                self.resume((file.name, 0))
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        return time.monotonic() - began
