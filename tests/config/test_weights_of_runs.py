"""`model.weights = "run:RUN@STEP"`: its shape lies under what the job says, its path is seen from the job file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurmtrain.config.checks import check_job
from slurmtrain.config.load import load_job
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.sites import load_site
from slurmtrain.config.weights import RunWeights, run_weights
from slurmtrain.errors import ConfigError
from tests.config.bad_files import GOOD_JOB, GOOD_SITE

SHAPE = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 320}


@pytest.fixture
def load(tmp_path):
    """Loads a job beside a run `old` of another shape."""
    (tmp_path / "old").mkdir()
    model = ModelConfig(**SHAPE, rope_theta=1e4, dropout=0.5, init_std=0.5).model_dump(mode="json", exclude_none=True)
    (tmp_path / "old" / "job.json").write_text(json.dumps({"v": 1, "model": model}))

    def load(text, **more):
        (tmp_path / "job.toml").write_text(GOOD_JOB.replace('preset = "tiny"', text))
        return load_job(tmp_path / "job.toml", policy_path=tmp_path / "none.toml", **more)

    load.folder = tmp_path
    return load


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("run:/a/b@12", RunWeights(Path("/a/b"), 12)),
        ("run:/a/b", RunWeights(Path("/a/b"), None)),
        ("run:/me@home/b", RunWeights(Path("/me@home/b"), None)),
        ("run:/me@home/b@0", RunWeights(Path("/me@home/b"), 0)),
        ("/a/b@12", None),
    ],
)
def test_what_it_means(text, means):
    assert run_weights(Path(text)) == means
    assert means is None or means.to_path() == Path(text)


def test_the_shape_of_the_run_is_taken_and_nothing_else_of_it(load):
    model = load('weights = "run:old@7"').model
    assert model.weights == Path(f"run:{load.folder}/old@7")
    assert (model.layers, model.heads, model.rope_theta) == (2, 4, 1e4)
    assert (model.dropout, model.init_std) == (0.0, 0.02)


def test_variables_are_filled_in(load):
    assert load('weights = "run:$HERE/old"', env={"HERE": str(load.folder)}).model.weights == Path(f"run:{load.folder}/old")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            'weights = "run:gone@7"',
            r"job\.toml: model\.weights = .*: there is no run in .*/gone \(no job\.json.*: give the path of its folder",
        ),
        ('weights = "run:old"\nlayers = 3', r"model\.layers = 3: the weights in run:.*/old have 2: leave it out"),
        ('weights = "run:old"\n[model.weights_names]\n"a.*" = "b"', r"model\.weights_names\.a\.\* = 'b': has one \* on both sides"),
        (
            'preset = "tiny"\nweights_missing = ["head.*"]',
            r"model\.weights_missing = \['head\.\*'\]: is about model\.weights",
        ),
    ],
)
def test_what_cannot_be(load, text, says):
    (load.folder / "mine.toml").write_text(GOOD_SITE)
    with pytest.raises(ConfigError, match=says):
        check_job(load(text), load_site(str(load.folder / "mine.toml"), {}), where="job.toml")


def test_another_shape_is_told_tensor_by_tensor_where_some_may_be_missing(load):
    assert load('weights = "run:old"\nlayers = 3\nweights_missing = ["layers.2.*"]').model.layers == 3
