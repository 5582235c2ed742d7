"""`slurmtrain run`: the same run folder, the supervisor in the foreground, the nodes of the allocation."""

from __future__ import annotations

import pytest

from slurmtrain.config.stored import read_plan
from slurmtrain.resilience import supervisor
from slurmtrain.resilience.supervisor import Summary
from slurmtrain.slurm.types import JobInfo
from slurmtrain.store.listing import steps_present
from slurmtrain.store.origin import Origin, read_origin
from slurmtrain.telemetry.history import read_acts
from tests.cli.desk import Desk, one_line_of
from tests.store.checkpoints import save


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


@pytest.fixture
def supervised(monkeypatch):
    """Calls of the supervisor; it says 75."""
    calls = []

    def supervise(run, environ, *, foreground=False):
        calls.append((run.path, dict(environ), foreground))
        return Summary(str(run.path), 75, "stopped", "a person asked")

    monkeypatch.setattr(supervisor, "supervise", supervise)
    return calls


def in_allocation(desk, nodes: int) -> None:
    desk.env.update(SLURM_JOB_ID="33", SLURM_JOB_NUM_NODES=str(nodes))


def test_the_supervisors_code_is_the_commands(desk, supervised):
    in_allocation(desk, 2)
    result = desk.type("run", desk.job_file)
    assert (result.exit_code, result.stdout) == (75, ""), result.output
    assert supervised == [(desk.run().path, desk.env, True)]
    (act,) = read_acts(desk.run())
    assert (act.what, act.job_id) == ("run", "33")
    assert desk.run().script.exists()


def test_all_nodes_of_the_allocation_where_nobody_says(desk, supervised):
    desk.job_file.write_text(desk.job_file.read_text().replace("nodes = 2", ""))
    in_allocation(desk, 4)
    desk.type("run", desk.job_file)
    assert read_plan(desk.run().plan_json).nodes == 4


@pytest.mark.parametrize("words", [("-N", "1"), ("--set", "slurm.nodes=1")])
def test_what_is_said_wins_over_the_allocation(desk, supervised, words):
    in_allocation(desk, 4)
    desk.type("run", desk.job_file, *words)
    assert read_plan(desk.run().plan_json).nodes == 1


def test_the_job_file_wins_over_the_allocation(desk, supervised):
    in_allocation(desk, 4)
    desk.type("run", desk.job_file)
    assert read_plan(desk.run().plan_json).nodes == 2


def test_an_allocation_that_is_too_small(desk, supervised):
    in_allocation(desk, 1)
    assert "slurm.nodes = 2: the allocation has 1" in one_line_of(desk.type("run", desk.job_file))
    assert not supervised


def test_part_of_a_node(desk, supervised):
    in_allocation(desk, 2)
    desk.type("run", desk.job_file, "--gpus-per-node", "2")
    assert read_plan(desk.run().plan_json).world == 4


def test_no_allocation_says_what_to_type(desk, supervised):
    line = one_line_of(desk.type("run", desk.job_file))
    assert "salloc -N 2" in line
    assert "slurmtrain submit" in line
    assert desk.files() == []


def test_this_machine_needs_no_slurm(desk, supervised):
    desk.slurm.down = True
    (desk.folder / "here.toml").write_text('launcher = "mpiexec"\ndevice = "cpu"\n[node]\ngpus = 4\n')
    assert desk.type("run", desk.job_file, "--site", "here").exit_code == 75
    assert desk.type("run", desk.job_file, "--site", "here", "--resume").exit_code == 75
    assert desk.slurm.questions == []


def test_resume_inside_the_same_allocation(desk, supervised):
    in_allocation(desk, 2)
    desk.type("run", desk.job_file)
    desk.slurm.put(JobInfo("33", "bash", "RUNNING"))
    assert "--resume" in one_line_of(desk.type("run", desk.job_file))
    assert desk.type("run", desk.job_file, "--resume").exit_code == 75
    assert len(supervised) == 2


def test_back_to_an_older_checkpoint_and_a_branch_of_it(desk, supervised):
    in_allocation(desk, 2)
    desk.type("run", desk.job_file)
    for step in (10, 20):
        save(desk.run(), step)
    assert desk.type("run", "--resume", "10", desk.job_file).exit_code == 75
    assert steps_present(desk.run().checkpoints) == [10]
    assert read_acts(desk.run())[-1].detail == "resume from step 10"
    assert desk.type("run", desk.job_file, "-J", "branch", "--from", "job@10").exit_code == 75
    assert read_origin(desk.run("branch")) == Origin(desk.run().path, 10)
