"""Keys of [checkpoint] and of a site's [storage] that do not fit together: one line each, with what would do."""

from __future__ import annotations

import re

import pytest

from slurmtrain.config.check_checkpoint import notes_of
from slurmtrain.config.checks import check_job
from slurmtrain.config.job import JobConfig
from slurmtrain.config.load import load_job
from slurmtrain.config.optimizer import state_bytes
from slurmtrain.config.site import SiteConfig
from slurmtrain.config.sites import load_site
from slurmtrain.errors import ConfigError
from tests.config.bad_files import GOOD_JOB, GOOD_SITE

MODEL = {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 100}
BEST = {"keep_best": 1, "best_metric": "held"}


def job(checkpoint=None, **sections) -> JobConfig:
    values = {
        "run": {"name": "r"},
        "model": MODEL,
        "data": {"path": "/d"},
        "training": {"steps": 1000, "sequence_length": 64, "global_batch": 16},
        "checkpoint": checkpoint or {},
        **sections,
    }
    return JobConfig.model_validate(values)


def site(**more) -> SiteConfig:
    return SiteConfig.model_validate({"name": "s", "device": "cpu", "node": {"gpus": 8}, **more})


def bad(key, value, says, **more):
    return pytest.param(key, says, {key: value, **more}, id=f"{key} = {value}")


@pytest.mark.parametrize(
    ("key", "says", "checkpoint"),
    [
        bad("every_steps", 0, "a failure would cost the whole run: give every_steps, every_minutes, or interval"),
        bad("every_steps", 50, 'and interval = "auto" say when to save', interval="auto"),
        bad("keep_every_steps", 50, "use keep_every_hours", interval="auto"),
        bad("keep_every_steps", 250, "use a multiple of every_steps = 100, such as 200 or 300"),
        bad("keep_best", 2, "the best by what? Give best_metric: loss or held"),
        bad("best_metric", "held", "nothing is kept for it: give keep_best"),
        bad("best_metric", "hold", "is not measured: use loss or held", keep_best=1),
        bad("timeout_s", 60, 'is of mode = "async"'),
        bad("writers_per_node", 9, "a node has 8 ranks: use 1 to 8"),
        bad("local", True, "site s has no paths.scratch"),
        bad("flush_every", 2, "is of local = true"),
    ],
)
def test_what_does_not_fit_is_refused(key, says, checkpoint):
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        check_job(job(checkpoint, evaluation={"sets": {"held": "/e"}}), site(), where="job.toml")
    assert caught.value.key == f"checkpoint.{key}"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "checkpoint",
    [
        {"every_steps": 0, "every_minutes": 30.0, "keep_every_steps": 7},
        {"every_minutes": 0.5, "keep_every_steps": 300, "keep_every_hours": 6.0},
        BEST,
        {"keep_best": 3, "best_metric": "loss"},
        {"mode": "async", "timeout_s": 60, "writers_per_node": 8},
        {"local": True, "flush_every": 2, "timeout_s": 60},
        {"interval": "auto"},
        {"interval": "auto", "every_minutes": 60.0, "keep_every_hours": 6.0},
    ],
    ids=str,
)
def test_what_fits_is_let_through(checkpoint):
    check_job(job(checkpoint, evaluation={"sets": {"held": "/e"}}), site(paths={"scratch": "/scratch"}))


def test_a_state_that_no_memory_holds_twice():
    """Weights and two moments in fp32: 12 bytes a parameter."""
    one = job({"mode": "async"}, slurm={"nodes": 2})
    assert state_bytes(one) == 12 * one.model.parameters()
    assert (
        state_bytes(job(optimizer={"name": "sgd"}, training=one.training.model_dump() | {"ema_decay": 0.9})) == 8 * one.model.parameters()
    )
    enough = state_bytes(one) // 2
    check_job(one, site(node={"gpus": 8, "memory_bytes": enough}))
    with pytest.raises(ConfigError, match=r"checkpoint.mode = 'async': .* takes .* on each node.*: use more nodes, or sync"):
        check_job(one, site(node={"gpus": 8, "memory_bytes": enough - 1}))
    check_job(job(slurm={"nodes": 2}), site(node={"gpus": 8, "memory_bytes": enough - 1}))
    with pytest.raises(ConfigError, match=r"checkpoint.local = True: .*: use more nodes, or leave local out"):
        check_job(
            job({"local": True}, slurm={"nodes": 2}), site(node={"gpus": 8, "memory_bytes": enough - 1}, paths={"scratch": "/scratch"})
        )


def test_a_lonely_node_is_told_that_it_has_no_partner():
    assert "no partner" in notes_of(job({"local": True}))[0]
    assert notes_of(job({"local": True}, slurm={"nodes": 2})) == notes_of(job()) == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stripe_bytes = 100_000", "storage.stripe_bytes = 100000: must be a multiple of 65536"),
        ("stripe_count = -2", "storage.stripe_count = -2: must be at least -1"),
        ('quota = "off"\nquota_command = "room"', 'storage.quota_command: asks for the quota, and quota = "off" says not to'),
    ],
)
def test_storage_of_a_site(tmp_path, text, says):
    (tmp_path / "mine.toml").write_text(f"{GOOD_SITE}\n[storage]\n{text}\n")
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_site(str(tmp_path / "mine.toml"), {}, policy_path=tmp_path / "none")


def test_the_file_says_by_time_alone(tmp_path):
    (tmp_path / "job.toml").write_text(f"{GOOD_JOB}\n[checkpoint]\nevery_steps = 0\nevery_minutes = 30\n")
    wish = load_job(tmp_path / "job.toml", policy_path=tmp_path / "none").checkpoint
    assert (wish.every_steps, wish.every_minutes) == (0, 30.0)


def test_an_interval_that_is_worked_out_leaves_no_steps_to_go_by():
    """The default of every_steps is nobody's wish; the resolved job says 0 and is read back as it is."""
    made = job({"interval": "auto"})
    assert made.checkpoint.every_steps == 0
    assert JobConfig.model_validate_json(made.model_dump_json(exclude_none=True), strict=True) == made
    assert job().checkpoint.every_steps == 100
