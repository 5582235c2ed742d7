"""What a run that goes on may say otherwise: every key of a job has its place, and what may not change is refused by name."""

from __future__ import annotations

import json

import pytest

from slurmtrain.config.changes import FIRST_VALUES, SAMPLES, SHAPE, allowed, check_changes, differences, plain, stored
from slurmtrain.config.job import JobConfig
from slurmtrain.config.keys import section_at, walk
from slurmtrain.errors import ConfigError

MODEL = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 320}
VALUES = {
    "run": {"name": "r"},
    "model": MODEL,
    "data": {"path": "/d"},
    "training": {"steps": 10, "sequence_length": 16, "global_batch": 16},
    "environment": {"TOKEN": "secret"},
}


def job(**sections) -> JobConfig:
    values = {**VALUES}
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
    return JobConfig.model_validate(values)


def changed(**sections):
    return differences(plain(job()), plain(job(**sections)))


def test_changes_are_told_key_by_key():
    assert changed() == []
    told = changed(slurm={"time": "5"}, environment={"A": "1"}, optimizer={"betas": [0.9, 0.99]})
    assert set(map(str, told)) == {"slurm.time: None -> 5", "environment.A: None -> 1", "optimizer.betas: [0.9, 0.95] -> [0.9, 0.99]"}
    check_changes(told, durable_step=7)


def test_what_a_checkpoint_keeps_of_its_job_is_plain_and_tells_no_secrets():
    kept = json.loads(json.dumps(stored(job())))
    assert "secret" not in json.dumps(kept)
    assert differences(kept, plain(job(environment={}))) == differences({}, {"environment": {"TOKEN": "secret"}})


def test_every_key_has_its_place():
    keys = [key for key in walk(JobConfig) if not section_at(JobConfig, key)]
    fixed = {f"model.{key}" for key in SHAPE} | set(SAMPLES) | set(FIRST_VALUES) | {"optimizer.name", "model.norm_eps"}
    assert [key for key in keys if allowed(key) == (key in fixed)] == []


@pytest.mark.parametrize(
    ("section", "fields"),
    [("model", {key: value}) for key, value in (("layers", 4), ("hidden", 64), ("heads", 8), ("vocab", 640), ("kv_heads", 4))]
    + [("model", {"tied_embeddings": True}), ("model", {"family": "qwen2"})],
    ids=str,
)
def test_the_model_of_a_run_stays(section, fields):
    with pytest.raises(ConfigError, match=rf"{section}.{next(iter(fields))} = .*: the run was begun with .*-J NAME"):
        check_changes(changed(**{section: fields}), durable_step=None)


@pytest.mark.parametrize(
    ("section", "fields", "says"),
    [
        ("training", {"seed": 7}, "was trained with 1234: its place in the data would mean other samples"),
        ("training", {"sequence_length": 7}, "was trained with 16: its place in the data"),
        ("data", {"documents": "separate"}, "was trained with 'joined': its place in the data"),
        ("optimizer", {"name": "sgd"}, "the state of adamw in the checkpoint of step 40 is of no use to it"),
        ("model", {"norm_eps": 1e-6}, "was trained with 1e-05"),
        ("model", {"init_std": 0.1}, "says first values, and the checkpoint of step 40 outweighs them"),
        ("model", {"weights": "/w"}, "says first values, and the checkpoint of step 40 outweighs them"),
    ],
    ids=str,
)
def test_what_a_checkpoint_depends_on_stays_once_there_is_one(section, fields, says):
    """Broken: the job waits in the queue, and its ranks refuse the checkpoint."""
    found = changed(**{section: fields})
    check_changes(found, durable_step=None)
    with pytest.raises(ConfigError, match=rf"{section}\.{next(iter(fields))} = .*{says}.*-J NAME"):
        check_changes(found, durable_step=40)


def test_weights_that_a_checkpoint_outweighs_may_be_left_out():
    check_changes(differences(plain(job(model={"weights": "/w"})), plain(job())), durable_step=40)
