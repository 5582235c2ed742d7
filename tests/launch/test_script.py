"""The rendered script under bash: who is started, with which words and variables, how signals and codes pass."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.launch.stub_job import StubJob

NASTY = {"A": "it's $HOME", "B": "A=1,2", "C": "x|y", "D": "64(x2)", "E": 'say "hi" `date` \\ ', "F": "two\nlines", "G": "", "H": "é *"}


@pytest.fixture
def stub(tmp_path):
    made = StubJob(tmp_path, run_name="it's $HOME, A=1,2 x|y é")
    made.make_run()
    yield made
    made.stop()


def await_(happened, what: str, limit_s: float = 30) -> None:
    deadline = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < deadline, f"not in {limit_s} s: {what}"
        time.sleep(0.02)


def test_by_hand_the_supervisor_starts_alone(stub):
    code, out = stub.finish()
    assert (code, out) == (0, "")
    assert stub.called() == [["-u", "-m", "slurmtrain.resilience", str(stub.run.path)]]


def test_a_pickle_of_this_job_starts_submitit(stub):
    (stub.run.submit / "12_submitted.pkl").touch()
    assert stub.finish()[0] == 0
    assert stub.called() == [["-u", "-m", "submitit.core._submit", str(stub.run.submit)]]
    assert stub.seen_environ()["SUBMITIT_EXECUTOR"] == "slurm"


def test_a_pickle_of_another_job_does_not(stub):
    (stub.run.submit / "11_submitted.pkl").touch()
    stub.finish()
    assert stub.called()[0][2] == "slurmtrain.resilience"


def test_a_pickle_that_is_renamed_while_the_job_starts_is_waited_for(stub):
    stub.run.pending_pickle(None).touch()
    stub.start()
    await_(lambda: stub.run.slurm_out("12").exists(), "the script has begun")
    time.sleep(0.5)
    assert stub.called() == []
    stub.run.pending_pickle(None).rename(stub.run.submit / "12_submitted.pkl")
    stub.ended()
    assert stub.called()[0][2] == "submitit.core._submit"


def test_a_pickle_that_went_to_another_job_is_not_waited_for_longer(stub):
    stub.run.pending_pickle(None).touch()
    stub.start()
    await_(lambda: stub.run.slurm_out("12").exists(), "the script has begun")
    stub.run.pending_pickle(None).rename(stub.run.submit / "13_submitted.pkl")
    stub.ended()
    assert stub.called()[0][2] == "slurmtrain.resilience"


def test_a_member_of_an_array_has_its_own_pickle_and_log(tmp_path):
    stub = StubJob(tmp_path, array="1-4%1")
    stub.make_run()
    (stub.run.submit / "40_2_submitted.pkl").touch()
    stub.finish(SLURM_ARRAY_JOB_ID="40", SLURM_ARRAY_TASK_ID="2", SLURM_JOB_ID="42")
    assert stub.called()[0][2] == "submitit.core._submit"
    assert stub.run.slurm_out("40_2").exists()


def test_an_array_of_runs_goes_to_the_run_of_the_member(tmp_path):
    stubs = [StubJob(tmp_path, run_name=name) for name in ("one", "the second")]
    for each in stubs:
        each.make_run()
    folders = tuple(str(each.run.path) for each in stubs)
    assert stubs[0].finish(runs=folders, SLURM_ARRAY_JOB_ID="40", SLURM_ARRAY_TASK_ID="1")[0] == 0
    assert stubs[0].called()[0][3] == folders[1]
    code, out = stubs[0].finish(runs=folders, SLURM_ARRAY_JOB_ID="40", SLURM_ARRAY_TASK_ID="2")
    assert code == 78
    assert "no member 2" in out


def test_values_arrive_whole(stub):
    stub.environment = NASTY
    stub.finish()
    seen = stub.seen_environ()
    assert {key: seen[key] for key in NASTY} == NASTY


def test_paths_of_interpreter_and_code(stub):
    stub.environment = {"PYTHONPATH": "/theirs"}
    stub.finish()
    seen = stub.seen_environ()
    assert seen["PATH"].split(":")[0] == str(stub.folder)
    assert seen["PYTHONPATH"] == f"{stub.run.code}:/theirs"
    assert seen["PWD"] == str(stub.run.code)


@pytest.mark.parametrize("code", [0, 1, 3, 75, 93])
def test_the_code_of_the_process_counts_where_the_run_says_none(stub, code):
    stub.body = f"exit {code}"
    assert stub.finish()[0] == code


def test_the_code_that_the_run_says_wins(stub):
    stub.body = f"echo 75 >'{stub.run.exit_code}'; exit 1".replace("it's", "it'\\''s")
    assert stub.finish()[0] == 75


def test_what_an_earlier_start_left_does_not_count(stub):
    stub.run.exit_code.write_text("75\n")
    left = [stub.run.submit / name for name in ("12_0_result.pkl", "12_0_result.pkl.save_tmp", "12_submitted.pkl.save_tmp")]
    other = stub.run.submit / "11_0_result.pkl"
    for path in (*left, other):
        path.touch()
    assert stub.finish()[0] == 0
    assert not [path for path in left if path.exists()]
    assert other.exists()


def test_the_log_of_the_run_takes_over(stub):
    stub.body = "echo out; echo err >&2"
    assert stub.finish()[1] == ""
    assert stub.log() == "out\nerr\n"


def test_a_log_that_is_open_already_is_not_opened_again(stub):
    stub.body = "cat /proc/$PPID/fdinfo/1"
    stub.finish()
    with stub.run.slurm_out("12").open("w") as log:
        environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "12"}
        done = subprocess.run(["bash", str(stub.script)], env=environ, stdout=log, stderr=log, check=False, timeout=30)
    assert done.returncode == 0
    flags = int(re.search(r"flags:\s+(\d+)", stub.log())[1], 8)
    assert not flags & os.O_APPEND


SUPERVISOR = """
import signal, sys, threading
seen, last, over = sys.argv[1], sys.argv[2], threading.Event()
def heard(number, frame):
    name = signal.Signals(number).name
    open(seen, "a").write(name + "\\n")
    over.set() if name == last else None
for name in ("SIGUSR2", "SIGTERM"):
    signal.signal(getattr(signal, name), heard)
open(seen, "a").write("ready\\n")
while not over.wait(0.05):
    pass
sys.exit(75)
"""


@pytest.mark.parametrize("signals", [(signal.SIGUSR2,), (signal.SIGTERM,), (signal.SIGTERM, signal.SIGUSR2)])
def test_signals_reach_the_supervisor_and_its_code_is_kept(stub, signals, tmp_path):
    seen, program = tmp_path / "seen", tmp_path / "supervisor.py"
    program.write_text(SUPERVISOR)
    stub.body = f"exec {sys.executable} {program} {seen} {signals[-1].name}"
    stub.start()
    expected = "ready\n"
    await_(lambda: seen.exists() and seen.read_text() == expected, "the supervisor is up")
    for signum in signals:
        os.kill(stub.process.pid, signum)  # to bash alone, as --signal=B: does
        expected += f"{signum.name}\n"
        await_(lambda wanted=expected: seen.read_text() == wanted, f"{signum.name} arrived")
    assert stub.ended()[0] == 75


def test_a_supervisor_that_a_signal_kills_gives_the_code_of_that(stub, tmp_path):
    stub.body = f"echo ready >{tmp_path}/seen; exec sleep 60"
    stub.start()
    await_((tmp_path / "seen").exists, "the supervisor is up")
    os.kill(stub.process.pid, signal.SIGTERM)
    assert stub.ended()[0] == 128 + signal.SIGTERM


def test_a_supervisor_that_was_killed_is_started_again(stub, tmp_path):
    stub.body = f"[ -e {tmp_path}/killed ] && exit 0; touch {tmp_path}/killed; kill -9 $$"
    assert stub.finish()[0] == 0
    assert len(stub.called()) == 2
    assert stub.called()[0] == stub.called()[1]
    assert "ended by signal 9: it is started again (1 of 3)" in stub.log()


def test_but_not_for_ever(stub):
    stub.body = "kill -9 $$"
    assert stub.finish()[0] == 128 + signal.SIGKILL
    assert len(stub.called()) == 1 + 3


@pytest.mark.parametrize("end", ["exit 1", "exit 93", "kill -9 $$"])
def test_one_that_had_come_to_its_end_is_not_started_again(stub, end):
    stub.body = f"echo 93 >'{stub.run.exit_code}'; {end}".replace("it's", "it'\\''s")
    assert stub.finish()[0] == 93
    assert len(stub.called()) == 1


def test_signals_reach_the_one_that_was_started_again(stub, tmp_path):
    seen, program = tmp_path / "seen", tmp_path / "supervisor.py"
    program.write_text(SUPERVISOR)
    start = f"exec {sys.executable} {program} {seen} SIGUSR2"
    stub.body = f"[ -e {tmp_path}/killed ] && {start}; touch {tmp_path}/killed; kill -9 $$"
    stub.start()
    await_(lambda: seen.exists() and seen.read_text() == "ready\n", "the second supervisor is up")
    os.kill(stub.process.pid, signal.SIGUSR2)
    assert stub.ended()[0] == 75
    assert len(stub.called()) == 2


def test_usr2_before_the_supervisor_can_hear_it_does_not_kill_it(stub, tmp_path):
    stub.body = f"echo up >{tmp_path}/seen; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; exit 3"
    stub.start()
    await_((tmp_path / "seen").exists, "the supervisor is up, and has no handler")
    os.kill(stub.process.pid, signal.SIGUSR2)
    time.sleep(0.2)
    (tmp_path / "go").touch()
    assert stub.ended()[0] == 3


def test_term_before_the_supervisor_ends_the_job(stub):
    stub.run.pending_pickle(None).touch()
    stub.start()
    await_(lambda: stub.run.slurm_out("12").exists(), "the script has begun")
    time.sleep(0.1)
    os.kill(stub.process.pid, signal.SIGTERM)
    assert stub.ended()[0] == 143
    assert stub.called() == []


def test_a_run_folder_that_is_not_there_is_prepared(tmp_path):
    run = tmp_path / "llama"
    prepare = ("bash", "-c", f"echo preparing; mkdir -p {run}/submit {run}/code && echo '{{}}' >{run}/job.json", "it's one word")
    stub = StubJob(tmp_path, prepare=prepare)
    code, out = stub.finish()
    assert (code, out) == (0, "preparing\n")
    assert stub.called()[0][2] == "slurmtrain.resilience"
    assert stub.finish() == (0, "")


def test_a_run_that_cannot_be_prepared_ends_the_job(tmp_path):
    stub = StubJob(tmp_path, prepare=("bash", "-c", "echo no such job file >&2; exit 2"))
    assert stub.finish() == (78, "no such job file\n")
    assert stub.called() == []


def test_a_module_that_cannot_be_loaded_names_itself(stub):
    stub.site_environment = {"modules": ["no/such"]}
    code, out = stub.finish()
    assert code == 78
    assert "module load no/such failed on" in out


def test_an_interpreter_that_is_not_there_names_itself(stub, tmp_path):
    stub.python = tmp_path / "gone" / "python"
    code, out = stub.finish()
    assert code == 78
    assert f"no interpreter {stub.python} on" in out


def test_modules_are_loaded_with_the_function_that_the_site_has(stub, tmp_path):
    stub.site_environment = {"modules": ["cuda/12"], "before": [f"echo before >>{tmp_path}/order"]}
    code, _ = stub.finish(**{"BASH_FUNC_module%%": f'() {{ echo "$@" >>{tmp_path}/order\n}}'})
    assert code == 0
    assert (tmp_path / "order").read_text() == "load cuda/12\nbefore\n"
