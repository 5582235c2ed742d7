"""Jobs with [entry] at a login node: submitted, shown, refused by what a script cannot do."""

from __future__ import annotations

import pytest

from slurmtrain.config.stored import read_job, read_plan
from tests.cli.desk import Desk, one_line_of

ENTRY = """\
[run]
include = ["train.py"]
[entry]
command = ["python", "train.py", "--flag"]
checkpoint = 'checkpoints/(?P<step>\\d+)\\.pt'
[slurm]
nodes = 2
"""


@pytest.fixture
def desk(tmp_path):
    made = Desk(tmp_path)
    made.job_file.write_text(ENTRY)
    (tmp_path / "train.py").write_text("print('step 1')\n")
    return made


def test_a_command_is_submitted_like_any_other_job(desk):
    result = desk.submit()
    assert result.exit_code == 0, result.output
    assert read_job(desk.run().job_json).entry.command == ("python", "train.py", "--flag")
    assert (desk.run().code / "train.py").read_text() == "print('step 1')\n"
    plan = read_plan(desk.run().plan_json)
    assert (plan.nodes, plan.tp, plan.dp) == (2, 1, plan.world)
    told = desk.type("status", "job")
    assert told.exit_code == 0
    assert "none yet" in told.output


def test_a_dry_run_shows_the_script_and_touches_nothing(desk):
    before = desk.files()
    result = desk.submit("--dry-run")
    assert result.exit_code == 0, result.output
    assert "#SBATCH --nodes=2" in result.output
    assert desk.files() == before


@pytest.mark.parametrize(
    ("name", "says"),
    [("other.py", "entry.command[1] = 'other.py': is not among the files that are copied into the run (there are train.py)")],
)
def test_a_script_that_would_not_be_there_is_refused(desk, name, says):
    desk.job_file.write_text(ENTRY.replace('"train.py", "--flag"', f'"{name}"'))
    assert says in one_line_of(desk.submit())
    assert not desk.run().path.exists()


def test_a_script_that_is_meant_by_its_whole_path_or_from_a_module_is_not_looked_for(desk):
    for words in ('"/shared/train.py"', '"-m", "package.train"'):
        desk.job_file.write_text(ENTRY.replace('"train.py", "--flag"', words))
        assert desk.submit("--dry-run").exit_code == 0


def test_it_goes_on_with_what_it_finds_and_only_so(desk):
    job_id = desk.submit("--parsable").stdout.strip()
    desk.slurm.change(job_id, state="COMPLETED")
    (desk.run().checkpoints / "40.pt").write_text("")
    assert "move the checkpoints" in one_line_of(desk.submit("--resume", "20"))
    (desk.folder / "train.py").write_text("print('step 2')\n")
    result = desk.submit("--resume", "--set", "entry.steps=50")
    assert result.exit_code == 0, result.output
    assert "entry.steps: None -> 50" in result.output
    assert (desk.run().code / "train.py").read_text() == "print('step 2')\n"
    assert (desk.run().checkpoints / "40.pt").exists()
    assert "step 40" in desk.type("status", "job").output
    assert f"step 40, {desk.run().checkpoints / '40.pt'}" in desk.type("ckpt", "list", "job").output
    assert "saves and loads by itself" in one_line_of(desk.type("ckpt", "now", "job"))
    assert "saves and loads by itself" in one_line_of(desk.submit("-J", "branch", "--from", "job@40"))
