"""What every StepLauncher does: mpiexec, the fake, and srun on a real cluster run these same tests."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurmtrain.errors import LaunchError
from slurmtrain.steps.launcher import StepLauncher, StepSpec
from tests.fakes.steps import log_text

SHOW = """
import json, os, sys
keep = [name for name in os.environ if name.startswith("T_")]
told = json.dumps({"env": {name: os.environ[name] for name in keep}, "argv": sys.argv[1:], "cwd": os.getcwd()})
os.write(1, (told + "\\n").encode())  # at once: tasks share a log
"""
STUBBORN = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child, sys.argv[1]], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""
POLITE = """
import signal, sys, time
def leave(*_):
    print("left", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(600)
"""
VALUES = {"T_A": "1,2", "T_B": "x y", "T_C": "64(x2)", "T_D": "it's $HOME", "T_E": "a=b;'\"`|\\", "T_F": "two\nlines", "T_G": ""}


def until(happened: Callable[[], object], limit_s: float = 40) -> None:
    deadline = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.05)


def processes_with(word: str) -> list[str]:
    """Command lines of processes that hold the word (zombies have none)."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            line = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
        except OSError:
            continue
        if word.encode() in line:
            found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


class LauncherConformance:
    @pytest.fixture
    def launcher(self) -> StepLauncher:
        raise NotImplementedError

    @pytest.fixture
    def missing(self) -> StepLauncher:
        """A launcher whose program is not there."""
        raise NotImplementedError

    @pytest.fixture
    def folder(self, tmp_path) -> Path:
        """For the logs: a path with all that a path may have."""
        path = tmp_path / 'it\'s 50% %j "done"'
        path.mkdir()
        return path

    @pytest.fixture
    def spec(self, folder, request):
        """Two nodes with two tasks each, running Python code."""
        job_id = getattr(self, "job_id", lambda _: "7")(request)

        def make(code: str, *words: str, **more: object) -> StepSpec:
            command = (sys.executable, "-c", code, *words)
            return StepSpec(command, ("n2", "n1"), 2, folder / "node-%n.log", job_id=job_id, **more)  # type: ignore[arg-type]

        return make

    def test_every_task_runs_once_with_its_environment_and_words_as_they_are(self, launcher, spec, tmp_path):
        words = ("a b", "c=$X", "")
        step = launcher.start(spec(SHOW, *words, environment=VALUES, cwd=tmp_path))
        assert step.wait(40) == 0
        assert step.poll() == 0
        text = log_text(step_output(spec))
        shown = [json.loads(part) for part in text.replace("}{", "}\n{").split("\n") if part]
        assert len(shown) == 4
        for one in shown:
            assert one == {"env": VALUES, "argv": list(words), "cwd": str(tmp_path)}

    def test_a_program_that_is_not_there_ends_the_step(self, launcher, spec, folder):
        gone = StepSpec(("/gone/python", "x"), ("n1",), 1, folder / "node-%n.log", job_id=spec("").job_id)
        step = launcher.start(gone)
        assert step.wait(40) not in {0, None}
        assert "/gone/python" in step.words() + log_text(gone.output)

    def test_a_launcher_that_is_not_there_says_so(self, missing, spec):
        with pytest.raises(LaunchError, match=r"No such file|no mpiexec"):
            missing.start(spec(SHOW))

    def test_a_failing_task_shows_in_the_code(self, launcher, spec):
        step = launcher.start(spec("import sys; sys.exit(7)", mpi="pmi2"))
        assert step.wait(40) not in {0, None}

    def test_a_step_that_runs_has_no_code_and_is_not_waited_for_longer_than_asked(self, launcher, spec):
        step = launcher.start(spec(POLITE))
        until(lambda: log_text(step_output(spec)).count("up") == 4)
        assert step.poll() is None
        assert step.wait(0.01) is None
        assert step.pid > 0
        step.end(20)
        assert step.poll() is not None
        assert log_text(step_output(spec)).count("left") == 4

    def test_the_end_leaves_no_process_that_will_not_go(self, launcher, spec, folder):
        word = f"stubborn-{folder.parent.name}-{type(self).__name__}"
        step = launcher.start(spec(STUBBORN, word))
        until(lambda: log_text(step_output(spec)).count("up") == 4)
        start = time.monotonic()
        step.end(0.3)
        assert step.poll() is not None
        until(lambda: not processes_with(word), 10)
        assert time.monotonic() - start < 20

    def test_what_another_process_started_by_a_spec_is_found_by_it_and_ended(self, launcher, spec, folder):
        word = f"left-{folder.parent.name}"
        step = launcher.start(spec(STUBBORN, word))
        until(lambda: log_text(folder / "node-%n.log").count("up") == 4)
        other = spec("pass", "of another spec")
        assert not launcher.end_left(replace(other, output=folder / "other-%n.log"), 0.5)
        assert launcher.end_left(spec(STUBBORN, word), 0.5)
        until(lambda: not processes_with(word), 10)
        assert not launcher.end_left(spec(STUBBORN, word), 0.5)
        assert step.wait(20) is not None

    def test_ending_what_has_ended_is_no_fault(self, launcher, spec):
        step = launcher.start(spec("pass"))
        assert step.wait(40) == 0
        step.end(5)
        assert step.poll() == 0

    def test_a_missing_folder_for_the_logs_is_said(self, launcher, folder):
        with pytest.raises(LaunchError, match="no folder for the log"):
            launcher.start(StepSpec((sys.executable, "-c", "pass"), ("n1",), 1, folder / "gone/node-%n.log", job_id="7"))


def step_output(spec) -> Path:
    return spec("").output
