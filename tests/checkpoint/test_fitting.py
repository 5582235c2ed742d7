"""Weights of another name, too few or too many: each told by its name, and let through only where the job says so."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from slurmtrain.checkpoint.fitting import Fit, fit, fit_of_checkpoint, renamed
from slurmtrain.checkpoint.hf import load_weights
from slurmtrain.checkpoint.hf_check import check_weights
from slurmtrain.config.hf import model_keys, read_config
from slurmtrain.config.model import ModelConfig
from slurmtrain.errors import CheckpointError, ConfigError
from slurmtrain.models.decoder import Decoder
from slurmtrain.models.names import global_shapes
from slurmtrain.store.manifest import Manifest, TensorEntry
from tests.checkpoint.models import parts_of
from tests.models.peers import hugging_face, shape

SHAPE = {"layers": 1, "hidden": 8, "heads": 2, "kv_heads": 1, "ffn": 12, "vocab": 16}


def model(**more) -> ModelConfig:
    return ModelConfig(**SHAPE, **more)


def manifest(change=None, **shapes):
    there = {f"model/{name}": tensor for name, tensor in global_shapes(model()).items()} | {"optimizer/x/exp_avg": (3,), "rng/p/cpu": (9,)}
    there |= {name.replace("__", "."): value for name, value in shapes.items()}
    return Manifest(7, 1, 0, {}, {}, {(change or str)(name): TensorEntry(value, "float32", ()) for name, value in there.items()})


def test_what_fits_fits_and_only_weights_count():
    names = list(global_shapes(model()))
    assert fit_of_checkpoint(manifest(), model()) == Fit({name: name for name in names})
    assert fit_of_checkpoint(manifest(), model()).words == ""


def without(name):
    full = manifest()
    return Manifest(7, 1, 0, {}, {}, {key: one for key, one in full.tensors.items() if key != f"model/{name}"})


def test_a_missing_one_is_told_and_may_be_allowed():
    with pytest.raises(CheckpointError, match=r"^no tensor norm\.weight, which this model needs, among the 11 that it holds \(model\."):
        fit_of_checkpoint(without("norm.weight"), model())
    with pytest.raises(CheckpointError, match=r"no tensor norm\.weight"):
        fit_of_checkpoint(without("norm.weight"), model(weights_missing=["head.*"]))
    fitting = fit_of_checkpoint(without("norm.weight"), model(weights_missing=["nor*"]))
    assert fitting.first == ("norm.weight",)
    assert "norm.weight" not in fitting.found
    assert fitting.words == "; first values are kept of norm.weight"


def test_one_too_many_is_told_and_may_be_allowed():
    more = manifest(**{"model/extra__weight": (2,), "model/other": (1,)})
    with pytest.raises(CheckpointError, match=r"^extra\.weight, other: this llama model has no such tensor"):
        fit_of_checkpoint(more, model())
    with pytest.raises(CheckpointError, match=r"^other: this llama model"):
        fit_of_checkpoint(more, model(weights_surplus=["extra.*"]))
    fitting = fit_of_checkpoint(more, model(weights_surplus=["extra.*", "other"]))
    assert fitting.left == ("extra.weight", "other")
    assert fitting.words == "; extra.weight, other is left aside"


def test_another_shape_is_a_missing_one():
    other = manifest(**{"model/head__weight": (20, 8)})
    with pytest.raises(CheckpointError, match=r"^head\.weight has shape \(20, 8\), \(16, 8\) in this model$"):
        fit_of_checkpoint(other, model())
    fitting = fit_of_checkpoint(other, model(weights_missing=["head.weight"]))
    assert (fitting.first, fitting.left) == (("head.weight",), ())


def test_renames_are_by_the_first_rule_that_fits():
    rules = {"body.*.w": "layers.*.weight", "body.*": "other.*", "end": "head.weight"}
    assert renamed(["body.0.w", "body.1.b", "end", "x"], rules) == {
        "layers.0.weight": "body.0.w",
        "other.1.b": "body.1.b",
        "head.weight": "end",
        "x": "x",
    }
    old = manifest(lambda name: name.replace("model/layers.", "model/h.").replace("model/norm.", "model/ln."))
    fitting = fit_of_checkpoint(old, model(weights_names={"h.*": "layers.*", "ln.weight": "norm.weight"}))
    assert fitting.found["layers.0.ffn.up.weight"] == "h.0.ffn.up.weight"
    assert fitting.found["norm.weight"] == "ln.weight"


@pytest.mark.parametrize(
    ("rules", "says"),
    [({"gone.*": "x.*"}, r"model\.weights_names: gone\.\* fits no tensor there"), ({"norm.*": "head.*"}, r"are both head\.weight")],
)
def test_renames_that_cannot_be(rules, says):
    with pytest.raises(CheckpointError, match=says):
        fit_of_checkpoint(manifest(), model(weights_names=rules))


def test_shapes_that_nobody_knows_are_not_compared():
    there = dict.fromkeys(global_shapes(model()))
    assert fit(there, {name: (name, one) for name, one in global_shapes(model()).items()}, model()).first == ()


@pytest.fixture
def hub(tmp_path):
    """Transformers' llama under another name, with a tensor of its own, and without its last norm."""
    torch.manual_seed(1)
    hugging_face(shape({})).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"]
    renamed_ = {f"language_model.{name}": tensor for name, tensor in tensors.items()} | {"vision.patch": torch.zeros(3)}
    save_file(renamed_, tmp_path / "model.safetensors")
    return tmp_path


def test_a_folder_of_hugging_face_by_the_same_rules(hub):
    keys = model_keys(read_config(hub))
    with pytest.raises(ConfigError, match=r"language_model\..*: this llama model has no such tensor"):
        check_weights(hub, ModelConfig(**keys))
    allowed = {"weights_names": {"language_model.*": "*"}, "weights_missing": ["norm.weight"], "weights_surplus": ["vision.*"]}
    config = ModelConfig(**keys, **allowed)
    assert check_weights(hub, config).first == ("norm.weight",)
    ours = Decoder(config)
    before = ours.norm.weight.detach().clone()
    loaded = load_weights(hub, config, parts_of(ours))
    assert loaded.line.endswith("; first values are kept of norm.weight; vision.patch is left aside")
    theirs = load_file(hub / "model.safetensors")
    assert torch.equal(ours.embedding.weight, theirs["language_model.model.embed_tokens.weight"])
    assert torch.equal(ours.norm.weight, before)
    with pytest.raises(CheckpointError, match=r"no tensor model\.norm\.weight"):
        load_weights(hub, ModelConfig(**keys, **{**allowed, "weights_missing": ["head.*"]}), parts_of(ours))
