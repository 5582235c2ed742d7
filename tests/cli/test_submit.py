"""`slurmtrain submit`: what it prints, what it leaves, and in which order it refuses."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from slurmtrain.config.stored import read_job, read_plan
from slurmtrain.errors import SlurmError, SubmitUnknownError
from slurmtrain.slurm.types import JobInfo
from slurmtrain.telemetry.history import read_acts
from tests.cli.desk import Desk, one_line_of
from tests.fakes.disk import FakeDisk
from tests.store.checkpoints import save


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_stdout_is_what_sbatch_says_and_hints_are_on_stderr(desk):
    result = desk.submit()
    assert (result.exit_code, result.stdout) == (0, "Submitted batch job 1\n"), result.output
    assert f"run folder {desk.run().path}" in result.stderr
    assert "slurmtrain logs job -f" in result.stderr
    elsewhere = desk.folder / "other runs"
    hint = next(line for line in desk.submit("--root", elsewhere).stderr.splitlines() if line.startswith("follow it"))
    words = shlex.split(hint.partition(": ")[2])
    assert desk.type(*words[1:-1]).stderr.startswith("slurmtrain: run job: its jobs have printed nothing yet")


def test_parsable_prints_the_id_alone(desk):
    result = desk.submit("--parsable")
    assert (result.stdout, result.stderr) == ("1\n", "")


def test_the_run_folder_is_whole_before_sbatch_is_called(desk):
    seen = []
    submit = desk.slurm.submit
    desk.slurm.submit = lambda script, *, options=(): seen.extend(desk.files()) or submit(script, options=options)
    desk.submit()
    assert {"job/job.toml", "job/job.json", "job/site.json", "job/plan.json", "job/submit/request.json", "job/submit/job.sbatch"} <= set(
        seen
    )
    assert {"job/submit/pending.pkl", "job/code", "job/attempts", "job/events", "job/checkpoints"} <= set(seen)
    assert read_plan(desk.run().plan_json).world == 8


def test_history_tells_who_and_which_job(desk):
    desk.submit()
    (act,) = read_acts(desk.run())
    assert (act.what, act.job_id) == ("submit", "1")
    assert "@" in act.who


def test_the_record_of_the_request(desk):
    desk.submit("--set", "training.steps=50")
    record = json.loads(desk.run().request_json.read_bytes())
    assert record["versions"]["packages"]["click"]
    assert record["submitter"]["t"] == desk.clock.time()
    assert record["code"]["files"] == 0
    assert "--comment=" + str(desk.run().path) in record["directives"]


def test_options_have_sbatchs_names_and_reach_the_directives(desk):
    words = "-N 4 -J mine -p big -A acc -q high -t 8h -w n[1-4] -x n9 -C gpu80 -d singleton --reservation r -a 1-3%1"
    assert desk.submit(*words.split(), "--", "--mail-type=END", "--mail-user", "bob").exit_code == 0
    lines = desk.run("mine").script.read_text().splitlines()
    for line in (
        "--nodes=4",
        "--job-name=mine",
        "--partition=big",
        "--account=acc",
        "--qos=high",
        "--time=08:00:00",
        '--nodelist="n[1-4]"',
        "--exclude=n9",
        "--constraint=gpu80",
        "--dependency=singleton",
        "--reservation=r",
        "--array=1-3%1",
        "--mail-type=END --mail-user bob",
    ):
        assert f"#SBATCH {line}" in lines, line


def test_long_names_are_sbatchs_too(desk):
    words = (
        "--nodes=4 --job-name=mine --partition=big --account=acc --qos=q --time=60 --nodelist=n1 --exclude=n2 --constraint=c --dependency=d"
    )
    assert desk.submit(*words.split(), "--dry-run").exit_code == 0


def test_a_range_of_nodes_asks_for_the_spares_too(desk):
    desk.submit("-N", "2-3")
    assert "#SBATCH --nodes=3" in desk.run().script.read_text()
    assert read_plan(desk.run().plan_json).nodes == 2


def test_part_of_a_node(desk):
    assert desk.submit("--gpus-per-node", "2", "-N", "2").exit_code == 0
    assert "--exclusive" not in desk.run().script.read_text()
    assert read_plan(desk.run().plan_json).world == 4


def test_dry_run_prints_the_very_script_and_touches_nothing(desk, tmp_path):
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    result = desk.submit("--dry-run", "-t", "60")
    assert result.exit_code == 0
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    assert not desk.slurm.submitted
    desk.submit("-t", "60")
    assert desk.run().script.read_text() == result.stdout
    assert subprocess.run(["bash", "-n"], input=result.stdout, text=True, check=False).returncode == 0


def test_a_dry_run_needs_no_slurm(desk):
    desk.slurm.down = True
    assert desk.submit("--dry-run").exit_code == 0


def prepare_command(script: str) -> list[str]:
    line = next(line for line in script.splitlines() if "--prepare" in line)
    return shlex.split(line.split(" || ")[1])


def test_a_script_by_hand_prepares_the_run_that_was_printed(desk):
    script = desk.submit("--dry-run", "--set", "training.steps=50", "-J", "by hand?").output
    assert "use letters" in script
    script = desk.submit("--dry-run", "--set", "training.steps=50", "-J", "by-hand").stdout
    words = prepare_command(script)
    desk.env.update(SLURM_JOB_ID="88", SLURM_ARRAY_JOB_ID="87", SLURM_ARRAY_TASK_ID="2")
    result = desk.type(*words[4:])
    assert (result.exit_code, result.output) == (0, "")
    assert [(act.what, act.job_id) for act in read_acts(desk.run("by-hand"))] == [("prepare", "87_2")]
    assert read_job(desk.run("by-hand").job_json).training.steps == 50
    assert not desk.slurm.submitted
    assert desk.type(*words[4:]).exit_code == 0
    assert desk.run("by-hand").script.read_text() == script


def test_a_job_file_that_changed_since_the_dry_run_is_told(desk):
    script = desk.submit("--dry-run").stdout
    words = prepare_command(script)
    desk.job_file.write_text(desk.job_file.read_text().replace("steps = 100", "steps = 200"))
    assert "not as when this script was made" in one_line_of(desk.type(*words[4:]))
    assert desk.files() == []


def test_a_taken_name_says_what_to_type(desk):
    desk.submit()
    line = one_line_of(desk.submit())
    assert "run 'job' exists" in line
    assert "--resume" in line
    assert "-J NAME" in line
    assert len(desk.slurm.submitted) == 1


def test_resume_is_a_new_job_in_the_same_folder(desk):
    desk.submit()
    desk.slurm.change("1", state="COMPLETED")
    desk.run().stop.touch()
    result = desk.submit("--resume", "--set", "training.steps=200")
    assert result.stdout == "Submitted batch job 2\n"
    assert not desk.run().stop.exists()
    assert read_acts(desk.run())[-1].detail == "resume; training.steps: 100 -> 200"
    assert read_job(desk.run().job_json).training.steps == 200


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_resume_refuses_while_a_job_of_the_run_is_alive(desk, state):
    desk.submit()
    desk.slurm.change("1", state=state)
    assert f"job 1 of run 'job' is {state}" in one_line_of(desk.submit("--resume"))


def test_resume_sees_a_job_that_was_submitted_by_hand(desk):
    desk.submit()
    desk.slurm.change("1", state="COMPLETED")
    desk.slurm.put(JobInfo("7", "job", "RUNNING", comment=str(desk.run().path)))
    assert "job 7 of run 'job' is RUNNING" in one_line_of(desk.submit("--resume"))


def test_resume_refuses_another_model_shape(desk):
    desk.submit()
    desk.slurm.change("1", state="FAILED")
    assert "model.layers = 8: the run was begun with" in one_line_of(desk.submit("--resume", "--set", "model.layers=8"))


def test_resume_of_none(desk):
    assert "no run 'job'" in one_line_of(desk.submit("--resume"))


def test_a_finished_run_goes_on_to_more_steps_alone(desk):
    desk.submit()
    desk.slurm.change("1", state="COMPLETED")
    desk.run().finished.write_text("{}")
    assert "is finished" in one_line_of(desk.submit())
    line = one_line_of(desk.submit("--resume"))
    assert "training.steps = 100: run 'job' is at step 100 already: say --set training.steps=N, more than 100" in line
    assert desk.submit("--resume", "--set", "training.steps=150").exit_code == 0
    assert not desk.run().finished.exists()


def test_a_run_that_its_target_ended_goes_on_towards_another(desk):
    """Broken: a run that ended early is taken for one that has made all its steps."""
    told = ("--set", "target.below=3", "--set", "target.stop=true")
    desk.submit(*told)
    desk.slurm.change("1", state="COMPLETED")
    desk.run().finished.write_text('{"v":1,"step":40,"t":0}')
    assert "target.stop = True: run 'job' has reached its target at step 40" in one_line_of(desk.submit("--resume", *told))
    assert "training.steps = 30" in one_line_of(desk.submit("--resume", "--set", "training.steps=30"))
    assert desk.submit("--resume", *told, "--set", "target.below=2").exit_code == 0


def test_resume_tells_what_changed_and_refuses_a_last_step_that_is_behind(desk):
    desk.submit("--set", "training.steps=2000", "--set", "checkpoint.keep=5")
    desk.slurm.change("1", state="COMPLETED")
    save(desk.run(), 121)
    line = one_line_of(desk.submit("--resume"))
    assert "training.steps = 100: run 'job' is at step 121 already, and was begun with 2000: say --set training.steps=2000" in line
    result = desk.submit("--resume", "--set", "training.steps=2000", "--dry-run")
    assert result.stderr.splitlines()[0] == "changed since the run was last submitted: checkpoint.keep: 5 -> 3"


def test_a_folder_that_is_no_run_is_not_touched(desk):
    desk.run().path.mkdir()
    assert "is not a run" in one_line_of(desk.submit())
    assert "is not a run" in one_line_of(desk.submit("--resume"))
    assert list(desk.run().path.iterdir()) == []


def refusing(desk, error):
    def submit(script, *, options=()):
        raise error

    desk.slurm.submit = submit


def test_a_refused_job_leaves_nothing(desk):
    refusing(desk, SlurmError("sbatch: invalid partition specified: nope"))
    line = one_line_of(desk.submit("-p", "nope", "--", "--mail-type=END"), code=1)
    assert "invalid partition specified: nope (asked for --nodes=2 --gpus-per-node=4 --time=" in line
    assert line.endswith(" --partition=nope --mail-type=END)")
    assert desk.files() == []


def test_a_root_that_was_made_for_a_refused_job_goes_too(desk, tmp_path):
    refusing(desk, SlurmError("no"))
    desk.submit("--root", tmp_path / "fresh")
    assert not (tmp_path / "fresh").exists()


def test_a_job_of_which_nobody_knows_whether_it_was_taken_keeps_its_folder(desk):
    refusing(desk, SubmitUnknownError("sbatch got no answer"))
    one_line_of(desk.submit(), code=1)
    assert desk.run().job_json.exists()


def test_a_refused_resume_loses_nothing(desk):
    desk.submit()
    desk.slurm.change("1", state="FAILED")
    (desk.run().checkpoints / "step-00000007").mkdir()
    refusing(desk, SlurmError("no"))
    one_line_of(desk.submit("--resume"), code=1)
    assert (desk.run().checkpoints / "step-00000007").is_dir()
    assert desk.run().job_json.exists()


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    desk = Desk(tmp_path, disk=FakeDisk({"write": {3}}))
    assert "No space left on device" in one_line_of(desk.submit(), code=1)
    assert desk.files() == []


def test_a_history_that_cannot_be_written_does_not_lose_the_job(tmp_path):
    desk = Desk(tmp_path, disk=FakeDisk({"append": None}))
    assert desk.submit().stdout == "Submitted batch job 1\n"


def test_a_limit_too_short_is_refused(desk):
    assert "slurm.time = '2'" in one_line_of(desk.submit("-t", "2"))
    assert "slurm.time = '125s': too short" in one_line_of(desk.submit("-t", "125s"))


def test_data_that_is_not_there(desk):
    assert "data.path" in one_line_of(desk.submit("--set", "data.path=gone"))
    assert "slurmtrain data build" in one_line_of(desk.submit("--set", "data.path=gone"))


def test_an_interpreter_that_is_not_there(desk):
    assert "python = '/gone/python': no such interpreter" in one_line_of(desk.submit("--set", "python=/gone/python"))


def test_a_site_without_slurm(desk):
    assert "slurmtrain run" in one_line_of(desk.submit("--site", "local"))


def test_no_site_lists_them(desk):
    desk.env.pop("SLURMTRAIN_SITE")
    desk.slurm.config["ClusterName"] = "elsewhere"
    line = one_line_of(desk.submit())
    assert "elsewhere" in line
    assert "mysite" in line


def test_no_root_says_how_to_give_one(desk):
    desk.env.pop("SLURMTRAIN_ROOT")
    assert "--root" in one_line_of(desk.submit())


def test_root_of_option_variable_and_site(desk, tmp_path):
    for name in ("by-option", "by-site"):
        (tmp_path / name).mkdir()
    desk.submit("--root", tmp_path / "by-option")
    assert (tmp_path / "by-option/job/job.json").exists()
    desk.env.pop("SLURMTRAIN_ROOT")
    desk.env["HERE"] = str(tmp_path)
    with (tmp_path / "mysite.toml").open("a") as file:
        file.write('\n[paths]\nroot = "$HERE/by-site"\n')
    desk.submit()
    assert (tmp_path / "by-site/job/job.json").exists()


@pytest.mark.parametrize("name", ["a\\b", "a%jb", "a\nb"])
def test_a_root_that_slurm_would_misread_is_refused(desk, tmp_path, name):
    assert "choose a folder without" in one_line_of(desk.submit("--root", tmp_path / name))


def test_names_with_nasty_characters_around_the_run(desk, tmp_path):
    nasty = tmp_path / "it's $HOME, A=1 x|y"
    nasty.mkdir()
    assert desk.submit("--root", nasty).exit_code == 0
    assert desk.slurm.submitted[0][1] == (f"--output={tmp_path}/it's $HOME, A=1 x|y/job/slurm-%j.out",)


def test_code_of_a_git_repository_and_includes(desk, tmp_path):
    desk.env["GIT_CEILING_DIRECTORIES"] = ""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "model.py").write_text("x")
    (tmp_path / "notes.txt").write_text("x")
    subprocess.run(["git", "-C", tmp_path, "add", "model.py"], check=True)
    desk.submit("--include", tmp_path / "notes.txt")
    assert sorted(p.name for p in desk.run().code.iterdir()) == ["model.py", "notes.txt"]
    desk.submit("-J", "live", "--live")
    assert desk.run("live").code.resolve() == tmp_path.resolve()


def test_interrupted_while_it_prepares_leaves_nothing(desk):
    desk.disk.publish_dir = lambda staging, final: (_ for _ in ()).throw(KeyboardInterrupt)
    result = desk.submit()
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (130, "", "slurmtrain: interrupted")
    assert desk.files() == []
