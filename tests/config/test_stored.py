"""The resolved models come back from a run folder as they were. Broken: a requeued job trains with other settings."""

from __future__ import annotations

import json

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.config.load import load_job
from slurmtrain.config.plan import Plan
from slurmtrain.config.sites import load_site
from slurmtrain.config.stored import plan_of_attempt, read_job, read_plan, read_site, write_models
from slurmtrain.errors import ConfigError
from slurmtrain.rundir import RunDir
from tests.config.bad_files import GOOD_JOB, GOOD_SITE

PLAN = Plan(
    world=8, nodes=2, spares=1, gpus_per_node=4, tp=2, cp=1, ep=1, dp=2, pp=2, order=("tp", "cp", "ep", "dp", "pp"), nvlink_domain="node",
    block_nodes=1, stages=((0, 1), (2, 3)), global_batch=8, micro_batch=1, microbatches=4, dp_mode="ddp",
)  # fmt: skip


@pytest.fixture
def written(tmp_path):
    (tmp_path / "job.toml").write_text(GOOD_JOB + 'extra = ["--mail-type=END"]\n\n[environment]\nA = "it\'s $HOME"\nB = "ü\\u0001"\n')
    (tmp_path / "site.toml").write_text(GOOD_SITE + '\n[paths]\nroot = "~/runs"\n')
    job = load_job(tmp_path / "job.toml", env={}, policy_path=tmp_path / "none")
    site = load_site(str(tmp_path / "site.toml"), {}, policy_path=tmp_path / "none")
    run = RunDir(tmp_path / "run")
    run.create()
    write_models(run, job, site, PLAN, SystemDisk())
    return run, job, site


def test_models_come_back_equal(written):
    run, job, site = written
    assert read_job(run.job_json) == job
    assert read_site(run.site_json) == site
    assert read_plan(run.plan_json) == PLAN


def test_files_carry_the_format_version(written):
    run, *_ = written
    for path in (run.job_json, run.site_json, run.plan_json):
        assert json.loads(path.read_text())["v"] == 1


def test_a_newer_format_is_refused_by_name(written):
    run, *_ = written
    values = json.loads(run.plan_json.read_text()) | {"v": 2, "new_key": 1}
    run.plan_json.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=r"plan.json: v = 2: was written by a newer slurmtrain; this one reads formats up to 1"):
        read_plan(run.plan_json)


@pytest.mark.parametrize(
    ("content", "says"), [("{", "not JSON"), ("[]", "not a JSON object"), ('{"v": 1}', "missing keys: world, nodes"), ("\x00", "not JSON")]
)
def test_damaged_files_are_one_line(written, content, says):
    run, *_ = written
    run.plan_json.write_text(content)
    with pytest.raises(ConfigError, match=says) as caught:
        read_plan(run.plan_json)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match="no such file: is this the folder of a run"):
        read_job(tmp_path / "job.json")


def test_an_attempt_may_have_a_layout_of_its_own(written):
    run, *_ = written
    run.attempt(2).create()
    own = PLAN.model_copy(update={"nodes": 1, "world": 4, "dp": 1, "microbatches": 8})
    run.attempt(2).plan_json.write_text(own.model_dump_json())
    assert [plan_of_attempt(run, number) for number in (1, 2, 3)] == [PLAN, own, PLAN]
    run.attempt(2).plan_json.write_text("{")
    with pytest.raises(ConfigError, match=r"attempts/0002/plan\.json: is damaged"):
        plan_of_attempt(run, 2)
