"""Checkpoints of step 0 out of folders that transformers wrote."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from slurmtrain.checkpoint import making
from slurmtrain.checkpoint.cuts import Sizing
from slurmtrain.checkpoint.hf_import import check_import, import_weights
from slurmtrain.config.hf import model_keys, read_config
from slurmtrain.config.model import ModelConfig
from slurmtrain.errors import CheckpointError, ConfigError
from slurmtrain.models.decoder import Decoder
from slurmtrain.store.verify import verify
from tests.checkpoint.foreign import contents
from tests.checkpoint.test_hf import saved
from tests.models.peers import GPT2

CHANGES = {
    "qwen2": {"family": "qwen2", "kv_heads": 2},
    "tied": {"tied_embeddings": True},
    "gpt2": GPT2 | {"ffn": 56},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_model_of_the_checkpoint_gives_the_logits_of_theirs(tmp_path, monkeypatch, change):
    theirs = saved(tmp_path / "hub", change)
    model = ModelConfig(**model_keys(read_config(tmp_path / "hub")))
    monkeypatch.setattr(making, "BATCH_BYTES", 20_000)
    assert check_import(tmp_path / "hub", model) == ""
    told = []
    made = import_weights(tmp_path / "hub", model, tmp_path / "out", Sizing(files=3), t=5.0, advance=told.append)
    assert verify(tmp_path / "out") == []
    assert len(made.manifest.files) == 3
    assert (made.manifest.step, made.manifest.t, made.notes) == (0, 5.0, ())
    assert sum(told) == 4 * model.parameters()
    ours = Decoder(model)
    held = contents(tmp_path / "out")
    assert held.keys() == {f"model/{name}" for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert held[f"model/{name}"][0] == "float32"
        parameter.data.copy_(torch.from_numpy(held[f"model/{name}"][1]))
    tokens = torch.randint(0, 67, (2, 31), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


def test_narrow_weights_are_widened_exactly_and_it_says_so(tmp_path):
    saved(tmp_path / "hub", {}, dtype=torch.bfloat16)
    model = ModelConfig(**model_keys(read_config(tmp_path / "hub")))
    made = import_weights(tmp_path / "hub", model, tmp_path / "out", Sizing(files=1), t=5.0)
    assert made.notes == ("cast from bfloat16 to float32",)
    theirs = {name: one for path in (tmp_path / "hub").glob("*.safetensors") for name, one in load_file(path).items()}
    held = contents(tmp_path / "out")["model/layers.1.ffn.down.weight"][1]
    assert torch.equal(torch.from_numpy(held), theirs["model.layers.1.mlp.down_proj.weight"].float())


def test_what_is_missing_is_refused_even_where_a_run_may_do_without(tmp_path):
    saved(tmp_path / "hub", {}, shards="1GB")
    file = tmp_path / "hub" / "model.safetensors"
    save_file({name: one for name, one in load_file(file).items() if name != "model.norm.weight"}, file)
    model = ModelConfig(**model_keys(read_config(tmp_path / "hub")))
    with pytest.raises(ConfigError, match=r"no tensor model\.norm\.weight, which this model needs"):
        check_import(tmp_path / "hub", model)
    allowed = model.model_copy(update={"weights_missing": ("norm.*",)})
    with pytest.raises(ConfigError, match=r"model\.weights_missing: no tensor norm\.weight: a run gives first values"):
        check_import(tmp_path / "hub", allowed)


def test_what_is_left_aside_is_told(tmp_path):
    saved(tmp_path / "hub", {}, shards="1GB")
    file = tmp_path / "hub" / "model.safetensors"
    save_file({**load_file(file), "vision.weight": torch.ones(3)}, file)
    model = ModelConfig(**model_keys(read_config(tmp_path / "hub")), weights_surplus=("vision.*",))
    assert check_import(tmp_path / "hub", model) == "vision.weight is left aside"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_number_is_named_and_nothing_is_made(tmp_path, value):
    saved(tmp_path / "hub", {}, shards="1GB")
    file = tmp_path / "hub" / "model.safetensors"
    values = load_file(file)
    values["model.norm.weight"][7] = value
    save_file(values, file)
    model = ModelConfig(**model_keys(read_config(tmp_path / "hub")))
    with pytest.raises(CheckpointError, match=r"hub: norm\.weight holds a value that is not finite"):
        import_weights(tmp_path / "hub", model, tmp_path / "out", Sizing(files=1), t=5.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub"]
