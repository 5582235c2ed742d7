"""A batch job without Slurm: the rendered script under bash, with a stub in place of the interpreter.

The stub runs a shell script (`body`) and says how it was called: `calls` holds one line per call, words parted by the unit separator.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmtrain.launch.render import render
from slurmtrain.launch.request import LaunchRequest
from slurmtrain.rundir import RunDir
from tests.launch.samples import job, request, site, templates

UNIT = "\x1f"
_STUB = """#!/bin/bash
printf '%s\\x1f' "$@" >>{calls}; echo >>{calls}
env -0 >{environ}
{body}
"""


@dataclass
class StubJob:
    """`folder`: where everything is; `run_name` may hold anything that a folder's name can."""

    folder: Path
    run_name: str = "llama"
    body: str = "exit 0"
    job_id: str = "12"
    environment: dict[str, str] = field(default_factory=dict)
    site_environment: dict[str, Any] = field(default_factory=dict)
    array: str | None = None
    prepare: tuple[str, ...] = ()
    process: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        self.run = RunDir(self.folder / self.run_name)
        self.python = self.folder / "stub python"
        self.script = self.folder / "script"
        self.calls = self.folder / "calls"
        self.environ = self.folder / "environ"

    def make_run(self) -> None:
        self.run.create()
        self.run.job_json.write_text("{}")

    def request(self) -> LaunchRequest:
        a_job = job(environment=self.environment, array=self.array)
        a_site = site(environment=self.site_environment)
        return request(a_job, a_site, run=self.run.path, python=str(self.python), prepare=self.prepare)

    def start(self, *, runs: tuple[str, ...] = (), **env: str) -> subprocess.Popen[str]:
        """Start the script as Slurm would: in the environment of a job, output to a pipe. Leave it by `ended` or `stop`."""
        stub = _STUB.format(calls=shlex.quote(str(self.calls)), environ=shlex.quote(str(self.environ)), body=self.body)
        if self.python.parent.is_dir():
            self.python.write_text(stub)
            self.python.chmod(0o755)
        self.script.write_text(render(self.request(), templates(), runs=runs))
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "SLURM_JOB_ID": self.job_id, **env}
        self.process = subprocess.Popen(
            ["bash", str(self.script)],
            env=environ,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self.process

    def ended(self) -> tuple[int, str]:
        """Wait for the end: (exit code, what was printed before the log of the run took over)."""
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out

    def stop(self) -> None:
        """End whatever still runs."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()

    def finish(self, *, runs: tuple[str, ...] = (), **env: str) -> tuple[int, str]:
        """`start` and `ended`."""
        self.start(runs=runs, **env)
        return self.ended()

    def called(self) -> list[list[str]]:
        if not self.calls.exists():
            return []
        return [line.split(UNIT)[:-1] for line in self.calls.read_text().splitlines()]

    def seen_environ(self) -> dict[str, str]:
        pairs = self.environ.read_bytes().decode().split("\0")
        return dict(pair.split("=", 1) for pair in pairs if pair)

    def log(self, job_id: str | None = None) -> str:
        return self.run.slurm_out(job_id or self.job_id).read_text()
