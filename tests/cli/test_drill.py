"""`slurmtrain drill`: what is put into the run before its job, who strikes when, and a drill from end to end without Slurm."""

from __future__ import annotations

import json
import re

import pytest

from slurmtrain.cli import strike
from slurmtrain.cli.drill_row import drained, left_by_word
from slurmtrain.cli.strike import Striker
from slurmtrain.config.stored import read_job
from slurmtrain.errors import SlurmtrainError
from slurmtrain.resilience import supervisor
from slurmtrain.resilience.drills import KINDS, kind_of
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.faults import Fault, read_faults
from tests.cli.desk import Desk, one_line_of
from tests.cli.ran import attempted, submitted
from tests.fakes.shell import FakeShell, Said
from tests.resilience.runs import tiny_command


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def drill(desk, *words):
    return desk.type("drill", *words)


def test_the_list_names_every_kind_and_what_comes_of_it(desk):
    shown = drill(desk, "list").stdout
    for kind in KINDS:
        assert re.search(rf"^{kind.name} +{re.escape(kind.does)}", shown, re.MULTILINE)
    assert [one["name"] for one in json.loads(drill(desk, "list", "--json").stdout)["kinds"]] == [one.name for one in KINDS]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("meteor", "job.toml"), "drill list"),
        (("exit",), "job file"),
        (("exit", "job.toml", "--resume"), "a run of its own"),
        (("exit", "job.toml", "--rank", "8"), "ranks 0 to 7"),
        (("signal-in-evaluation", "job.toml"), "never evaluates"),
        (("term", "job.toml", "--site", "local"), "needs a batch job"),
    ],
)
def test_what_cannot_be(desk, monkeypatch, words, says):
    monkeypatch.chdir(desk.folder)
    assert says in one_line_of(drill(desk, *words))
    assert desk.files() == []
    assert desk.slurm.submitted == []


def test_faults_lie_in_the_run_before_its_job_is_submitted(desk, monkeypatch):
    """And when the job's end is there, the row is."""
    before = []
    submit = desk.slurm.submit

    def submitting(script, *, options=()):
        (name,) = [path.name for path in desk.root.iterdir()]
        before.append((name, read_faults(desk.run(name).faults_json), read_job(desk.run(name).job_json)))
        job_id = submit(script, options=options)
        attempted(desk, desk.run(name), job_id)
        desk.slurm.change(job_id, state="FAILED", exit_code=1)
        return job_id

    monkeypatch.setattr(desk.slurm, "submit", submitting)
    result = drill(desk, "bitflip", desk.job_file, "--rank", "3", "--step", "9", "--json")
    ((name, faults, job),) = before
    assert re.fullmatch(r"drill-bitflip-\d{4}-\d{6}", name)
    assert faults == (Fault("bitflip", 3, 9, 1, 20),)
    assert job.recovery.corruption.every_steps == 5
    row = json.loads(result.stdout)
    assert (row["kind"], row["ok"], row["state"]) == ("bitflip", False, "FAILED"), result.stderr
    assert result.exit_code == 1
    assert row["why"]


def striker(desk, kind, *, shell=None, **more):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    doors = desk.doors if shell is None else type(desk.doors)(desk.env, shell, desk.clock, desk.disk, desk.slurm)
    said = []
    return Striker(run, kind_of(kind), read_job(run.job_json), doors, rank=5, step=3, say=said.append, job_id=job_id), said


def test_two_signals_to_the_batch_script_fifty_ms_apart(desk):
    one, said = striker(desk, "two-signals")
    began = desk.clock.monotonic()
    one.strike()
    assert [(c.signal, c.batch, c.step) for c in desk.slurm.cancelled] == [("TERM", True, None), ("USR2", True, None)]
    assert desk.clock.monotonic() - began == pytest.approx(0.05)
    assert one.struck_t == pytest.approx(desk.clock.time() - 0.05)
    assert "TERM and USR2" in said[0]


@pytest.mark.parametrize(("kind", "node"), [("agent-killed", "n1"), ("save-interrupted", "n1"), ("supervisor-killed", "n2")])
def test_a_deed_goes_to_the_node_of_the_rank_by_srun(desk, kind, node):
    shell = FakeShell({("srun",): Said("1700000123.500 done\n")})
    one, said = striker(desk, kind, shell=shell)
    desk.slurm.change(one.job_id, batch_host="n2")
    one.strike()
    (call,) = shell.asked("srun")
    assert {"--overlap", f"--nodelist={node}", f"--jobid={one.job_id}"} <= set(call.argv)
    assert call.argv[-4:] == ("slurmtrain.resilience.deed", one.kind.deed, str(one.run.path), "5")
    assert call.env["PYTHONPATH"].split(":")[0] == str(one.run.code)
    assert (one.struck_t, said) == (1700000123.5, ["drill: done"])


def test_a_deed_that_cannot_be_done_is_told(desk):
    one, _ = striker(desk, "agent-killed", shell=FakeShell({("srun",): Said(err="drill: no agent\n", rc=1)}))
    with pytest.raises(SlurmtrainError, match="agent on n1: drill: no agent"):
        one.strike()


def test_it_strikes_at_its_step_and_not_before(desk, monkeypatch):
    monkeypatch.setattr(strike, "_LOOK_S", 0.005)
    one, _ = striker(desk, "term")
    one.step = 50
    with one.at_work():
        pass
    assert desk.slurm.cancelled == []
    again, _ = Striker(one.run, one.kind, one.job, one.doors, rank=5, step=3, say=lambda _: None, job_id=one.job_id), None
    with again.at_work():
        for _ in range(1000):
            if again.struck_t is not None:
                break
            again._over.wait(0.005)
    assert [c.signal for c in desk.slurm.cancelled] == ["TERM"]


def test_what_was_left_and_drained_by_the_words_of_others(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    assert left_by_word(run) is None
    run.slurm_out(job_id).write_text("node n1 swept: 2 processes ended\nnode n2 swept: 3 processes ended; 7 9 outlive SIGKILL\n")
    assert left_by_word(run) == 2
    from slurmtrain.resilience.records import read_attempts

    records = read_attempts(run)
    assert drained(records, desk.doors) == ()
    desk.slurm.down = True
    assert drained(records, desk.doors) is None


SITE = """\
launcher = "mpiexec"
device = "cpu"

[slurm]
gpus_option = ""
exclusive = false

[node]
gpus = 2

[timeouts]
exit_grace_s = 2
"""


@pytest.mark.parametrize(("kind", "do"), [("exit", "exit 7"), pytest.param("sigkill", "kill", marks=pytest.mark.long)])
def test_a_drill_from_end_to_end_without_slurm(desk, monkeypatch, kind, do):
    """The tiny trainer does what faults.json says; everything else is real."""
    from slurmtrain.clock import SystemClock
    from slurmtrain.resilience.supervisor import supervise

    (desk.folder / "here.toml").write_text(SITE)

    def with_tiny(run: RunDir, environ, *, foreground):
        (fault,) = read_faults(run.faults_json)
        assert (fault.kind, fault.rank, fault.step) == (kind_of(kind).fault, 0, 12)
        faults = [{"attempt": fault.attempt, "rank": fault.rank, "step": fault.step, "do": do}]
        (run.path / "behaviour.json").write_text(json.dumps({"steps": 20, "step_s": 0.02, "save_every": 5, "faults": faults}))
        return supervise(run, environ, foreground=foreground, command=tiny_command(run))

    monkeypatch.setattr(supervisor, "supervise", with_tiny)
    monkeypatch.setattr(desk, "clock", SystemClock())
    monkeypatch.chdir(desk.folder)
    sets = ("training.steps=20", "parallel.tp=1", "parallel.pp=1", "checkpoint.every_steps=5")
    words = [word for text in sets for word in ("--set", text)]
    result = drill(
        desk, kind, desk.job_file, "--site", desk.folder / "here.toml", "-N", "1", *words, "--rank", "0", "--step", "12", "--json"
    )
    row = json.loads(result.stdout.splitlines()[-1])
    assert (row["ok"], row["detected"], row["went"], row["attempts"]) == (True, "rank_crash", "in place", 2), result.output
    assert 0 <= row["detect_s"] < 10
    assert 0 < row["first_step_s"] < 60
    assert row["steps_lost"] == 2, "saved at 10, dead when 12 was made"
    assert result.exit_code == 0
