"""A rank of a user's script as a process: what the script finds, how it is told to stop, and what its end leaves behind."""

from __future__ import annotations

import json
import os
import signal

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.telemetry.heartbeat import heartbeat_dir, read_beats
from slurmtrain.telemetry.stackdump import STACK_SIGNAL, stack_dump
from slurmtrain.telemetry.stopfile import stop_bytes
from tests.entry.stand import begin, events, finish, lives, pid_in, record_of, run_rank, said, script_run, send, start_rank, until

WAITS = """
    import os, pathlib, signal, sys, time
    heard = []
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, lambda n, _: heard.append(signal.Signals(n).name))
    pathlib.Path("pid.new").write_text(str(os.getpid()))
    os.rename("pid.new", "pid")
    while "SIGTERM" not in heard:
        time.sleep(0.01)
        pathlib.Path("heard").write_text(" ".join(heard))
    pathlib.Path("saved").write_text("all")
"""


def test_a_script_that_leaves_with_0_has_finished_and_its_lines_are_events(tmp_path):
    script = """
        for step in range(1, 5):
            print(f"\\x1b[32mstep {step}\\x1b[0m loss {5 - step / 2} lr 1e-3", flush=True)
        print("odd one out", end="")
    """
    run = script_run(tmp_path / "run", script, progress=r"step (?P<step>\d+).*loss (?P<loss>\S+) lr (?P<lr>\S+)")
    code, out = run_rank(run)
    assert (code, out.splitlines()[-1]) == (0, "odd one out")
    assert (record_of(run).kind, record_of(run).step) == ("finished", 4)
    told = events(run, "step")
    assert [(e.fields["step"], e.fields["loss"], e.fields["lr"]) for e in told] == [(n, 5 - n / 2, 1e-3) for n in range(1, 5)]
    assert "step_s" not in told[0].fields
    assert told[1].fields["step_s"] >= 0
    assert events(run, "finish")[0].fields["step"] == 4
    assert events(run, "start")[0].fields["world"] == 1
    assert not any(heartbeat_dir(run.path, 1, "local-1").glob("*-0*")), "the rank left something in the node's memory"


@pytest.mark.parametrize(
    ("script", "kind", "code", "words"),
    [
        ("raise ValueError('token 9 is too much')", "error", 1, "ValueError: token 9 is too much (code 1)"),
        ("import sys; sys.exit(7)", "error", 7, "the script ended: code 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "error", 1, "the script ended: SIGKILL"),
        (
            "import sys; sys.exit('[rank0]: RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [1.2.3.4]:5')",
            *("error", 1, "peer lost: RuntimeError: Connection closed by peer"),
        ),
    ],
)
def test_an_end_by_a_fault_names_it(tmp_path, script, kind, code, words):
    run = script_run(tmp_path / "run", script)
    assert run_rank(run)[0] == code
    record = record_of(run)
    assert (record.kind, record.code, record.node) == (kind, code, "local-1")
    assert record.error.startswith(words)


def test_a_command_that_is_not_there_is_wrong_configuration(tmp_path):
    run = script_run(tmp_path / "run", "")
    text = run.job_json.read_text().replace('"python",', '"no-such-program",')
    run.job_json.write_text(text)
    assert run_rank(run)[0] == 78
    assert (record_of(run).kind, record_of(run).category) == ("config", "configuration")
    assert "no-such-program" in record_of(run).error


def test_signals_reach_the_scripts_own_process_and_a_stop_that_it_obeys_is_one(tmp_path):
    """C28: USR1 and USR2 as they are, TERM as the request to save."""
    run = script_run(tmp_path / "run", WAITS)
    begin(run)
    process = start_rank(run)
    script = pid_in(run)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        send(process, number)
        name = signal.Signals(number).name
        until(name, lambda name=name: (run.code / "heard").exists() and name in (run.code / "heard").read_text())
    SystemDisk().write(run.attempt(1).stop, stop_bytes("stop"))
    assert finish(process)[0] == 0
    assert (record_of(run).kind, record_of(run).error) == ("stopped", "stop")
    assert (run.code / "saved").read_text() == "all"
    assert not lives(script)


@pytest.mark.parametrize(("signal_name", "kind"), [("USR1", "stopped"), ("none", "finished")])
def test_the_signal_that_the_script_knows_is_sent_once(tmp_path, signal_name, kind):
    script = """
        import pathlib, signal, sys, time
        heard = []
        signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
        pathlib.Path("pid").write_text("1")
        end = time.monotonic() + float(sys.argv[1])
        while time.monotonic() < end and not heard:
            time.sleep(0.01)
        time.sleep(0.7)
        pathlib.Path("count").write_text(str(len(heard)))
    """
    run = script_run(tmp_path / "run", script, words=("20" if kind == "stopped" else "0.5",), stop_signal=signal_name)
    begin(run)
    process = start_rank(run)
    pid_in(run)
    if kind == "stopped":
        SystemDisk().write(run.attempt(1).stop, stop_bytes("requeue"))
    assert finish(process)[0] == 0
    assert record_of(run).kind == kind
    assert (run.code / "count").read_text() == ("1" if kind == "stopped" else "0")


def test_term_from_outside_without_a_stop_is_no_fault_of_this_rank(tmp_path):
    run = script_run(tmp_path / "run", "import time, pathlib; pathlib.Path('pid').write_text('1'); time.sleep(60)")
    begin(run)
    process = start_rank(run)
    pid_in(run)
    send(process, signal.SIGTERM)
    assert finish(process)[0] == 1
    assert record_of(run).error == "peer lost: ended by SIGTERM from outside"


def test_what_the_script_has_started_ends_with_it_and_with_whoever_looks_after_it(tmp_path):
    script = """
        import os, pathlib, subprocess, sys, time
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        pathlib.Path("own").write_text(str(os.getpid()))
        pathlib.Path("pid").write_text(str(other.pid))
        time.sleep(600 if "long" in sys.argv else 0)
    """
    run = script_run(tmp_path / "run", script)
    assert run_rank(run)[0] == 0
    until("the script's child is gone", lambda: not lives(pid_in(run)))
    killed = script_run(tmp_path / "killed", script, words=("long",))
    begin(killed)
    process = start_rank(killed)
    pid_in(killed)
    process.kill()
    finish(process)
    until("the script is gone", lambda: not lives(pid_in(killed, "own")))
    os.kill(pid_in(killed), signal.SIGKILL)


def test_heartbeats_tell_steps_and_phases_and_the_script_asks_for_itself(tmp_path):
    script = """
        import pathlib, time
        from slurmtrain.entry import durable, heartbeat, resume_from, stop_requested
        assert resume_from() is None
        step = 0
        while not stop_requested():
            step += 1
            heartbeat(step, loss=3.0 - step / 1000)
            if step == 2:
                pathlib.Path("two.bin").write_text("x")
                durable(2, "two.bin")
                heartbeat(step, phase="save")
                pathlib.Path("pid").write_text("1")
            time.sleep(0.05)
    """
    run = script_run(tmp_path / "run", script)
    begin(run)
    process = start_rank(run)
    pid_in(run)
    folder = heartbeat_dir(run.path, 1, "local-1")
    until("steps in the heart", lambda: (beat := read_beats(folder).get(0)) is not None and beat.step >= 3 and beat.phase == "step")
    script = read_beats(folder)[0].pid
    os.kill(script, STACK_SIGNAL)
    until("its stacks", lambda: "script.py" in stack_dump(folder, script).read_text())
    SystemDisk().write(run.attempt(1).stop, stop_bytes("requeue"))
    assert finish(process)[0] == 0
    assert (record_of(run).kind, record_of(run).error) == ("stopped", "requeue")
    assert [path.name for path in folder.iterdir() if not path.name.startswith("stop-")] == []
    told = [e.fields["step"] for e in events(run, "step")]
    assert told == list(range(1, record_of(run).step + 1))
    assert [e.fields["step"] for e in events(run, "save")] == [2]
    begin(run, 2)
    (run.code / "script.py").write_text("import slurmtrain.entry as e; print('from', e.resume_from())")
    assert f"from {run.code / 'two.bin'}" in finish(start_rank(run, attempt=2))[1]
    assert events(run, "start", 2)[0].fields["resumed_from"] == 2


def test_steps_are_known_by_names_of_files_too(tmp_path):
    script = """
        import pathlib
        for step in (5, 10):
            pathlib.Path(f"at-{step}").touch()
            pathlib.Path("at-99.tmp").touch()
    """
    run = script_run(tmp_path / "run", script, progress_files=r"code/at-(?P<step>\d+)")
    assert run_rank(run)[0] == 0
    assert record_of(run).step == 10
    assert events(run, "step")[-1].fields["step"] == 10


def test_a_rank_that_says_nothing_is_waited_for_by_nobody_unless_it_is_stopped(tmp_path):
    run = script_run(tmp_path / "run", WAITS)
    begin(run)
    process = start_rank(run)
    script, folder = pid_in(run), heartbeat_dir(run.path, 1, "local-1")
    until("no phase that is waited for", lambda: read_beats(folder)[0].phase == "end")
    assert read_beats(folder)[0].pid == script
    os.kill(script, signal.SIGSTOP)
    until("a phase that ages", lambda: read_beats(folder)[0].phase == "step")
    before = read_beats(folder)[0].t
    os.kill(script, signal.SIGCONT)
    until("at ease again", lambda: read_beats(folder)[0].phase == "end")
    assert read_beats(folder)[0].t > before
    send(process, signal.SIGTERM)
    finish(process)


def test_attempts_have_one_identity_and_steps_that_come_again_are_marked(tmp_path):
    """C52."""
    script = """
        import json, os, pathlib
        names = ("SLURMTRAIN_RUN_ID", "WANDB_RUN_ID", "WANDB_RESUME", "TORCHELASTIC_RUN_ID")
        names += ("TORCHELASTIC_RESTART_COUNT", "SLURMTRAIN_LAST_STEP")
        attempt = os.environ["SLURMTRAIN_ATTEMPT"]
        pathlib.Path(f"env-{attempt}").write_text(json.dumps({name: os.environ[name] for name in names}))
        for step in range(3 if attempt == "2" else 1, 6):
            print("step", step, flush=True)
    """
    run = script_run(tmp_path / "run", script, progress=r"step (?P<step>\d+)")
    run_rank(run, 1)
    run_rank(run, 2)
    first, second = said(run, "env-1"), said(run, "env-2")
    same = {"SLURMTRAIN_RUN_ID", "WANDB_RUN_ID", "WANDB_RESUME", "TORCHELASTIC_RUN_ID"}
    assert {k: first[k] for k in same} == {k: second[k] for k in same}
    assert [(one["TORCHELASTIC_RESTART_COUNT"], one["SLURMTRAIN_LAST_STEP"]) for one in (first, second)] == [("0", "0"), ("1", "5")]
    assert [e.fields.get("replay") for e in events(run, "step", 1)] == [None] * 5
    assert [(e.fields["step"], e.fields.get("replay")) for e in events(run, "step", 2)] == [(3, True), (4, True), (5, True)]
    once = [e.fields["step"] for e in events(run, "step") if not e.fields.get("replay")]
    assert once == sorted(once) == [1, 2, 3, 4, 5]
    own = json.loads(run.job_json.read_text())
    run.job_json.write_text(json.dumps(own))
    assert run_rank(run, 3, WANDB_RUN_ID="mine")[0] == 0
    assert said(run, "env-3")["WANDB_RUN_ID"] == "mine"
