"""The doors to other programs: the machine's and the fake keep the same contract."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from slurmtrain.shell import RC_NOT_FOUND, RC_TIMED_OUT, Shell, SystemShell
from tests.fakes.shell import FakeProcess, FakeShell, FakeTalk, Said

SPEAK = (sys.executable, "-c", "import sys; sys.stdout.write('out'); sys.stderr.write('err'); sys.exit(3)")
ECHO = (sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read())")
SHOW = (sys.executable, "-c", "import os; print(os.environ['V'])")
LATE = (sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)")
GONE = ("/gone/program", "-x")
ANSWER = (sys.executable, "-c", "import sys\nfor line in sys.stdin: print('got', line, end='', flush=True)\nprint('over', flush=True)")
RUN_ON = (sys.executable, "-c", "import time; time.sleep(61)")


class ShellConformance:
    @pytest.fixture
    def shell(self) -> Shell:
        raise NotImplementedError

    def test_what_a_command_prints_and_its_code(self, shell):
        done = shell.run(SPEAK, timeout_s=30)
        assert (done.argv, done.rc, done.out, done.err, done.ok) == (SPEAK, 3, "out", "err", False)

    def test_stdin_reaches_it(self, shell):
        assert shell.run(ECHO, timeout_s=30, stdin="it's ü\n").out == "it's ü\n"
        assert shell.run(ECHO, timeout_s=30).ok

    @pytest.mark.parametrize("value", ["1,2", "x y", "64(x2)", "it's $HOME", "a=b;'\"`"])
    def test_the_environment_reaches_it_as_it_is_and_replaces_ours(self, shell, value):
        assert shell.run(SHOW, timeout_s=30, env={"V": value}).out == f"{value}\n"

    def test_a_missing_program_is_a_result(self, shell):
        done = shell.run(GONE, timeout_s=30)
        assert (done.rc, done.out) == (RC_NOT_FOUND, "")
        assert done.err == "/gone/program: No such file or directory"

    def test_a_late_command_is_a_result_with_what_it_had_printed(self, shell):
        done = shell.run(LATE, timeout_s=1.5)
        assert done.rc == RC_TIMED_OUT
        assert done.out in {"begun\n", ""}  # a busy machine may not have come so far
        assert done.err.endswith("no answer in 1.5 s")

    def test_a_program_runs_until_it_is_told_to_stop(self, shell):
        process = shell.start(RUN_ON)
        assert process.poll() is None
        assert process.wait(0.01) is None
        process.signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM
        assert process.poll() == -signal.SIGTERM
        process.signal(signal.SIGTERM)  # to one that has ended: nothing

    def test_killing_the_group_ends_it(self, shell):
        process = shell.start(RUN_ON)
        process.kill_group()
        assert process.wait(20) == -signal.SIGKILL
        process.kill_group()

    def test_a_missing_program_cannot_be_started(self, shell):
        with pytest.raises(FileNotFoundError) as caught:
            shell.start(GONE)
        assert caught.value.filename == "/gone/program"

    def test_a_program_that_is_spoken_with(self, shell):
        talk = shell.converse(ANSWER)
        assert talk.heard() == ""
        assert talk.say("one\n")
        parts: list[str] = []
        wait_until(lambda: parts.append(talk.heard()) or "got one\n" in "".join(parts))
        talk.hang_up()
        assert talk.wait(20) == 0
        assert not talk.say("two\n")
        assert "over" in talk.heard()
        assert talk.heard() == ""
        talk.close()
        assert talk.heard() == ""

    def test_one_that_has_gone_takes_no_more_and_nobody_waits(self, shell):
        talk = shell.converse(ANSWER)
        talk.kill_group()
        assert talk.wait(20) == -signal.SIGKILL
        assert not talk.say("one\n")
        talk.close()
        with pytest.raises(FileNotFoundError):
            shell.converse(GONE)


class Echo(FakeTalk):
    """What ANSWER does."""

    def say(self, text: str) -> bool:
        taken = super().say(text)
        self.prints(f"got {text}" if taken else "")
        return taken

    def hang_up(self) -> None:
        if not self.hung_up:
            self.prints("over\n")
            self.finish(0)
        super().hang_up()


class TestFakeShell(ShellConformance):
    @pytest.fixture
    def shell(self):
        return FakeShell(
            {
                SPEAK: Said("out", "err", 3),
                ECHO: lambda call: call.stdin,
                SHOW: lambda call: f"{call.env['V']}\n",
                LATE: Said("begun\n", seconds=60),
            },
            {RUN_ON: FakeProcess, ANSWER: Echo},
        )

    def test_the_longest_beginning_answers_and_a_list_is_given_in_turn(self):
        shell = FakeShell({("squeue",): ["one", Said(rc=1)], ("squeue", "-s"): "steps"})
        outs = [shell.run(argv, timeout_s=1) for argv in (["squeue"], ["squeue", "-s"], ["squeue", "-h"], ["squeue"])]
        assert [(done.out, done.rc) for done in outs] == [("one", 0), ("steps", 0), ("", 1), ("", 1)]
        assert [call.argv for call in shell.asked("squeue", "-h")] == [("squeue", "-h")]


class TestSystemShell(ShellConformance):
    @pytest.fixture
    def shell(self):
        return SystemShell()

    def test_what_a_late_command_started_is_killed_with_it(self, shell, tmp_path):
        pid_file = tmp_path / "pid"
        shell.run(["sh", "-c", f"sleep 62 & echo $! > '{pid_file}'; wait"], timeout_s=2)
        pid = int(pid_file.read_text())
        wait_until(lambda: not alive(pid))

    def test_a_process_group_is_killed_even_when_its_leader_has_ended(self, shell, tmp_path):
        pid_file = tmp_path / "pid"
        process = shell.start(["sh", "-c", f"sleep 63 & echo $! > '{pid_file}'"])
        assert process.wait(20) == 0
        pid = int(pid_file.read_text())
        assert alive(pid)
        process.kill_group()
        wait_until(lambda: not alive(pid))

    def test_output_is_appended_to_the_file(self, shell, tmp_path):
        log = tmp_path / "log"
        log.write_text("before\n")
        assert shell.start(SPEAK, stdout=log).wait(20) == 3
        assert log.read_text() in {"before\nouterr", "before\nerrout"}

    def test_a_log_that_cannot_be_written_is_told_from_a_missing_program(self, shell, tmp_path):
        with pytest.raises(FileNotFoundError) as caught:
            shell.start(SPEAK, stdout=tmp_path / "gone" / "log")
        assert Path(caught.value.filename) == tmp_path / "gone" / "log"

    def test_a_missing_folder_and_a_file_that_is_no_program_are_results(self, shell, tmp_path):
        text = tmp_path / "text"
        text.write_text("words")
        assert shell.run(SPEAK, timeout_s=20, cwd=tmp_path / "gone").err == f"{tmp_path / 'gone'}: No such file or directory"
        assert shell.run([str(text)], timeout_s=20).err == f"{text}: Permission denied"
        text.chmod(0o755)
        assert shell.run([str(text)], timeout_s=20).rc == RC_NOT_FOUND

    def test_bytes_that_are_no_text_do_not_break_it(self, shell):
        done = shell.run([sys.executable, "-c", "import os; os.write(1, b'a\\xffb')"], timeout_s=20)
        assert done.out == "a\ufffdb"

    def test_a_program_is_looked_for_in_the_path_that_it_is_given(self, shell, tmp_path):
        tool = tmp_path / "tool"
        tool.write_text("#!/bin/sh\necho found\n")
        tool.chmod(0o755)
        assert shell.run(["tool"], timeout_s=20, env={"PATH": str(tmp_path)}).out == "found\n"


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(happened, limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < deadline, "too late"
        os.sched_yield()

    def test_one_that_prints_without_end_is_killed_and_its_beginning_kept(self, monkeypatch):
        monkeypatch.setattr("slurmtrain.shell.PRINTED_BYTES", 1 << 21)
        done = SystemShell().run(("yes", "again"), timeout_s=30)
        assert (done.rc, done.out[:6]) == (-signal.SIGKILL, "again\n")
        assert len(done.out) < 1 << 21
        assert "yes: it prints without end" in done.err

    def test_what_an_ended_command_left_behind_with_its_output_is_told_from_a_late_one(self):
        done = SystemShell().run(("sh", "-c", "echo fine; sleep 63 &"), timeout_s=0.5)
        assert (done.rc, done.out) == (RC_TIMED_OUT, "fine\n")
        assert "it has ended, and what it started holds its output open after 0.5 s" in done.err
