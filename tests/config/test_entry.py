"""[entry] in a job file: one of two forms, refused by key where it does not fit, resolved by its convention."""

from __future__ import annotations

import json

import pytest

from slurmtrain.config.checks import check_job
from slurmtrain.config.draft import Draft
from slurmtrain.config.job import JobConfig
from slurmtrain.config.load import load_job
from slurmtrain.config.site import SiteConfig
from slurmtrain.config.stored import read_job, write_models
from slurmtrain.errors import ConfigError
from slurmtrain.fabric.plan import build_plan
from slurmtrain.rundir import RunDir
from tests.fakes.disk import FakeDisk

ENTRY = '[entry]\ncommand = ["python", "train.py", "--flag"]\n'
SITE = SiteConfig.model_validate({"name": "s", "node": {"gpus": 4}})


def load(tmp_path, text, **keywords):
    (tmp_path / "job.toml").write_text(text)
    return load_job(tmp_path / "job.toml", env={}, policy_path=tmp_path / "none", **keywords)


def test_a_command_alone_is_a_job_and_comes_back_from_its_folder(tmp_path):
    job = load(tmp_path, ENTRY + "[slurm]\nnodes = 3\n")
    check_job(job, SITE)
    assert job.entry.command == ("python", "train.py", "--flag")
    assert (job.entry.stop_signal, job.entry.progress_rank, job.steps, job.tokens_per_step) == ("TERM", "first", None, 0)
    assert (job.model, job.data, job.training) == (None, None, None)
    plan = build_plan(job, SITE)
    assert (plan.world, plan.dp, plan.tp * plan.pp * plan.cp * plan.ep, plan.tasks_per_node) == (12, 12, 1, 4)
    run = RunDir(tmp_path / "run")
    run.create()
    write_models(run, job, SITE, plan, FakeDisk())
    assert read_job(run.job_json) == job
    assert "model" not in json.loads(run.job_json.read_text())


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        (ENTRY + '[model]\npreset = "tiny"\n', "model", "[entry] and [model] cannot both be given"),
        (ENTRY + "[optimizer]\nlr = 1e-3\n", "optimizer", "[entry] and [optimizer] cannot both be given"),
        (ENTRY + "[recovery.numerics]\nskip_steps = 1\n", "recovery.numerics", "looks into our own trainer"),
        ("[entry]\ncommand = []\n", "entry.command", "is empty"),
        ("[entry]\nconvention = 'megatron'\n", "entry.command", "missing key: entry.command"),
        (ENTRY + "convention = 'nemo'\n", "entry.convention", "must be 'megatron' or 'torchtitan'"),
        (ENTRY + "progress = 'step \\d+'\n", "entry.progress", "needs a group named step"),
        (ENTRY + "progress = '(?P<step>\\d+'\n", "entry.progress", "is no regular expression"),
        (ENTRY + "checkpoint = 'a[^/](?P<step>\\d+)'\n", "entry.checkpoint", "keep / out of brackets"),
        (ENTRY + "stop_signal = 'KILL'\n", "entry.stop_signal", "must be 'TERM'"),
        ("[slurm]\nnodes = 2\n", "model", "missing tables: [model]"),
    ],
)
def test_what_is_wrong_is_told_by_its_key(tmp_path, text, key, says):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    assert error.value.key == key
    assert says in str(error.value)


def test_what_the_command_line_says_counts_too(tmp_path):
    with pytest.raises(ConfigError, match=r"--set training.steps.*\[entry\] and \[training\]"):
        load(tmp_path, ENTRY, sets=("training.steps=5",))


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        (ENTRY + "[recovery]\nelastic = true\n", "recovery.elastic", "only our own trainer"),
        (ENTRY + "ranks_per_node = 3\n", "entry.ranks_per_node", "use 1, 2 or 4"),
        (ENTRY + "ranks_per_node = 8\n", "entry.ranks_per_node", "use 1, 2 or 4"),
        (ENTRY + "[slurm]\ngpus_per_node = 5\n", "slurm.gpus_per_node", "use 1 to 4"),
    ],
)
def test_what_does_not_fit_the_site_is_told_by_its_key(tmp_path, text, key, says):
    with pytest.raises(ConfigError) as error:
        check_job(load(tmp_path, text), SITE)
    assert error.value.key == key
    assert says in str(error.value)


def test_one_rank_for_a_whole_node_has_all_its_gpus(tmp_path):
    plan = build_plan(load(tmp_path, ENTRY + "ranks_per_node = 1\n[slurm]\nnodes = 2\n"), SITE)
    assert (plan.world, plan.gpus_per_node, plan.tasks_per_node) == (2, 4, 1)


@pytest.mark.parametrize(
    ("convention", "rank", "newest", "checkpoint"),
    [
        ("megatron", "last", "checkpoints/latest_checkpointed_iteration.txt", None),
        ("torchtitan", "first", None, "outputs/checkpoint/step-"),
    ],
)
def test_conventions_fill_in_what_is_left_out_and_nothing_else(tmp_path, convention, rank, newest, checkpoint):
    entry = load(tmp_path, ENTRY + f"convention = '{convention}'\n").entry
    assert (entry.progress_rank, entry.stop_signal, entry.newest_file) == (rank, "TERM", newest)
    assert entry.progress
    assert (entry.checkpoint is None) if checkpoint is None else entry.checkpoint.startswith(checkpoint)
    own = load(tmp_path, ENTRY + f"convention = '{convention}'\nprogress_rank = 'first'\nstop_signal = 'USR1'\n").entry
    assert (own.progress_rank, own.stop_signal, own.progress) == ("first", "USR1", entry.progress)


def test_our_own_trainers_tables_are_missed_as_before():
    with pytest.raises(ConfigError, match=r"\[data\] with .*\[training\] with steps"):
        Draft({"run": {"name": "r"}, "model": {"layers": 1}}, "job").build(JobConfig)
