"""Spares that are worked out, and runs that may have fewer nodes: what submit says and asks for, what status tells."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slurmtrain.config.stored import read_job, read_plan
from slurmtrain.resilience.records import read_attempt, write_attempt
from tests.cli.desk import Desk
from tests.cli.ran import attempted, submitted
from tests.config.bad_files import GOOD_JOB, GOOD_SITE

BAD_NODES = "\n[reliability]\nfailures_per_node_day = 1.0\nrequeue_wait_s = 36000\nrestart_s = 60\n"


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def asked_nodes(script: str) -> str:
    return next(line.partition("--nodes=")[2] for line in script.splitlines() if line.startswith("#SBATCH --nodes="))


def test_a_dry_run_says_why_there_are_no_spares(desk):
    result = desk.submit("--spares", "auto", "--dry-run")
    assert result.exit_code == 0
    assert "spares = 0: a job on 2 nodes loses" in result.stderr
    assert "0.0065 a node-day" in result.stderr
    assert asked_nodes(result.stdout) == "2"


def test_bad_nodes_and_long_waits_want_spares(desk):
    (desk.folder / "mysite.toml").write_text(GOOD_SITE + BAD_NODES)
    desk.job_file.write_text(GOOD_JOB + 'spares = "auto"\n')
    result = desk.submit()
    assert result.exit_code == 0, result.output
    plan, job = read_plan(desk.run().plan_json), read_job(desk.run().job_json)
    assert plan.spares == job.slurm.spares > 0
    assert asked_nodes(desk.run().script.read_text()) == str(2 + plan.spares)
    assert f"spares = {plan.spares}: " in result.stderr


@pytest.mark.parametrize("word", ["many", "-1", "1.5"])
def test_spares_that_are_no_number(desk, word):
    result = desk.submit(f"--spares={word}")
    assert result.exit_code == 2
    assert f"'{word}' is neither a number nor auto" in result.stderr
    assert desk.submit("--set", f"slurm.spares={word}").exit_code == 2


def test_a_script_by_hand_has_the_spares_of_the_dry_run(desk):
    (desk.folder / "mysite.toml").write_text(GOOD_SITE + BAD_NODES)
    script = desk.submit("--spares", "auto", "--dry-run").stdout
    spares = int(asked_nodes(script)) - 2
    assert f"--spares={spares} " in next(line for line in script.splitlines() if "--prepare" in line)


def test_an_elastic_job_asks_for_a_range(desk):
    """tp 2 x pp 2 fills one of two nodes of four."""
    result = desk.submit("--set", "recovery.elastic=true", "--dry-run")
    assert result.exit_code == 0, result.output
    assert asked_nodes(result.stdout) == "1-2"


ODD = ["--gpus-per-node=1", "-N", "3", *(f"--set={text}" for text in ("parallel.tp=1", "parallel.pp=1", "training.global_batch=9"))]
"""Three nodes of one rank and nine sequences: two ranks do not divide them."""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set=recovery.min_nodes=3"], "recovery.min_nodes = 3: is more than slurm.nodes = 2: use 1 or 2"),
        ([*ODD, "--set=recovery.min_nodes=2"], "recovery.min_nodes = 2: so many nodes have no layout"),
        (["--set=parallel.tp=4"], "recovery.elastic = True: no other number of nodes than 2 has a layout"),
    ],
)
def test_a_least_size_without_a_layout_is_refused(desk, words, says):
    result = desk.submit("--set=recovery.elastic=true", *words, "--dry-run")
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_status_tells_how_many_of_its_nodes_a_run_has(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    assert " of 2 nodes" not in desk.type("status", "job").stdout
    write_attempt(run, desk.disk, replace(read_attempt(run, 1), nodes=("n1",)))
    told = desk.type("status", "job")
    assert "attempt     1 on n1, 1 of 2 nodes" in told.stdout
    assert json.loads(desk.type("status", "job", "--json").stdout)["planned_nodes"] == 2
