"""Exports: transformers loads them and computes our logits; import gives back the same bits; nothing half is left behind."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from slurmtrain.atomic import SystemDisk
from slurmtrain.checkpoint import hf_export, hf_names
from slurmtrain.checkpoint.casts import cast, finite
from slurmtrain.checkpoint.hf import load_weights
from slurmtrain.checkpoint.hf_export import export
from slurmtrain.config.hf import model_keys, read_config
from slurmtrain.config.model import ModelConfig
from slurmtrain.errors import CheckpointError, ConfigError, CorruptCheckpointError, UserError
from slurmtrain.models.decoder import Decoder
from tests.checkpoint.models import parts_of, run_of
from tests.fakes.disk import FakeDisk
from tests.models.peers import GPT2, VARIANTS, noisy, shape

LARGE = 1 << 30
TOKENS = torch.randint(0, 67, (2, 31), generator=torch.Generator().manual_seed(7))


def out_of(folder, model, module, **more):
    run, job = run_of(folder, model, (5, module))
    out = folder / "out"
    return out, export(run, job, out, **({"disk": SystemDisk(), "max_bytes": LARGE} | more))


def tensors_of(folder):
    return {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in load_file(path).items()}


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS.keys())
def test_transformers_computes_our_logits_and_import_gives_the_bits_back(tmp_path, change):
    from transformers import AutoModelForCausalLM

    model = shape(change)
    ours = noisy(model)
    out, _ = out_of(tmp_path, model, ours, max_bytes=20_000)
    theirs, report = AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS), theirs.eval()(TOKENS).logits, rtol=1e-5, atol=1e-5)
    again = Decoder(ModelConfig(**model_keys(read_config(out))))
    load_weights(out, again.model, parts_of(again))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))
    shape_keys = {"head_dim", "rope_scaling", "rope_theta", "norm_eps", "window", "family", "tied_embeddings", "max_positions"}
    assert {k: getattr(again.model, k) for k in shape_keys} == {k: getattr(model, k) for k in shape_keys}


@pytest.mark.parametrize("change", [{}, GPT2], ids=["llama", "gpt2"])
def test_a_tied_model_has_no_head_and_transformers_ties_it(tmp_path, change):
    """torchtitan issue 3764: the export of a tied model writes an empty lm_head.weight."""
    from transformers import AutoModelForCausalLM

    model = shape(change | {"tied_embeddings": True})
    ours = noisy(model)
    out, _ = out_of(tmp_path, model, ours)
    assert "lm_head.weight" not in tensors_of(out)
    theirs = AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(theirs.lm_head.weight, ours.embedding.weight)


@pytest.mark.parametrize(
    "dtype, kind, torch_dtype", [("fp32", "F32", torch.float32), ("bf16", "BF16", torch.bfloat16), ("fp16", "F16", torch.float16)]
)
@pytest.mark.parametrize("change", [{"family": "qwen3", "head_dim": 16}, GPT2], ids=["qwen3", "gpt2"])
def test_every_tensor_has_the_type_that_was_asked_for(tmp_path, change, dtype, kind, torch_dtype):
    """torchtitan issue 4166: the export's type is ignored. Norms and biases too; rounding is torch's."""
    model = shape(change)
    ours = noisy(model)
    out, _ = out_of(tmp_path, model, ours, dtype=dtype, max_bytes=20_000)
    files = sorted(out.glob("*.safetensors"))
    kinds = set()
    for path in files:
        with safe_open(path, framework="pt") as source:
            kinds |= {source.get_slice(name).get_dtype() for name in source.keys()}  # noqa: SIM118 no mapping
    assert len(files) > 1
    assert kinds == {kind}
    assert read_config(out)["torch_dtype"] == str(torch_dtype).removeprefix("torch.")
    again = Decoder(model)
    load_weights(out, model, parts_of(again))
    assert all(torch.equal(a.to(torch_dtype).float(), b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))


def test_shards_are_bounded_named_and_indexed(tmp_path):
    """Files as transformers names them; the index names each tensor once; a tensor over the bound is alone."""
    model = shape({})
    out, done = out_of(tmp_path, model, noisy(model), max_bytes=12_000)
    files = sorted(out.glob("*.safetensors"))
    assert [path.name for path in files] == [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
    index = json.loads((out / "model.safetensors.index.json").read_text())
    held = {path.name: {name: value.nbytes for name, value in load_file(path).items()} for path in files}
    assert {name: path for path, tensors in held.items() for name in tensors} == index["weight_map"]
    assert all(sum(one.values()) <= 12_000 or len(one) == 1 for one in held.values())
    assert any(sum(one.values()) > 12_000 for one in held.values())
    total = sum(size for one in held.values() for size in one.values())
    assert index["metadata"]["total_size"] == total == done.bytes == 4 * model.parameters()
    assert (done.tensors, done.shards, done.step) == (len(index["weight_map"]), len(files), 5)


def test_which_checkpoint(tmp_path):
    model = shape({})
    first, second = noisy(model, 3), noisy(model, 4)
    run, job = run_of(tmp_path, model, (5, first), (9, second))

    def embedding(out, **more):
        export(run, job, tmp_path / out, disk=SystemDisk(), max_bytes=LARGE, **more)
        return tensors_of(tmp_path / out)["model.embed_tokens.weight"]

    assert torch.equal(embedding("newest"), second.embedding.weight)
    assert torch.equal(embedding("older", step=5), first.embedding.weight)
    with pytest.raises(UserError, match="no checkpoint of step 7: there are 5, 9"):
        embedding("none", step=7)
    file = next(run.checkpoint(9).glob("*.h5"))
    file.write_bytes(file.read_bytes()[:-1])
    assert torch.equal(embedding("newest that verifies"), first.embedding.weight)
    with pytest.raises(CorruptCheckpointError, match="step-00000009"):
        embedding("damaged", step=9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newest", "newest that verifies", "older", "run"]


def test_a_run_without_a_checkpoint(tmp_path):
    run, job = run_of(tmp_path, shape({}))
    with pytest.raises(UserError, match="run run has no checkpoint yet"):
        export(run, job, tmp_path / "out", disk=SystemDisk(), max_bytes=LARGE)


def test_the_moving_average(tmp_path):
    model = shape({})
    ours, average = noisy(model, 3), noisy(model, 8)
    run, job = run_of(tmp_path, model, (5, ours), ema=average)
    export(run, job, tmp_path / "out", disk=SystemDisk(), max_bytes=LARGE, ema=True)
    assert torch.equal(tensors_of(tmp_path / "out")["model.embed_tokens.weight"], average.embedding.weight)
    assert not torch.equal(average.embedding.weight, ours.embedding.weight)
    (tmp_path / "plain").mkdir()
    with pytest.raises(ConfigError, match="step 5: keeps no moving average"):
        out_of(tmp_path / "plain", model, ours, ema=True)


def test_nothing_is_replaced_and_nothing_half_is_left(tmp_path):
    model = shape({})
    run, job = run_of(tmp_path, model, (5, noisy(model)))
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match="taken: is there already"):
        export(run, job, tmp_path / "taken", disk=SystemDisk(), max_bytes=LARGE)
    for method in ("write", "publish_dir"):
        with pytest.raises(CheckpointError, match="out: No space left on device: nothing was made"):
            export(run, job, tmp_path / "out", disk=FakeDisk({method: None}), max_bytes=LARGE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "taken"]


def test_a_value_that_the_type_cannot_hold_is_named(tmp_path):
    model = shape({})
    ours = noisy(model)
    ours.layers[1].ffn.up.weight.data[3, 4] = 70_000.0
    with pytest.raises(CheckpointError, match=r"model.layers.1.mlp.up_proj.weight: holds a value that is not finite as float16"):
        out_of(tmp_path, model, ours, dtype="fp16")
    assert not (tmp_path / "out").exists()


def test_a_shape_that_no_gpt2_of_transformers_has(tmp_path):
    model = shape(GPT2 | {"window": 4})
    with pytest.raises(ConfigError, match=r"model.family = 'gpt2': transformers' GPT-2 has no window"):
        out_of(tmp_path, model, noisy(model))


def test_tokenizer_and_ids_of_the_weights_that_a_run_started_from_go_along(tmp_path):
    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "tokenizer.json").write_text("{}")
    (hub / "config.json").write_text(
        json.dumps({"bos_token_id": 1, "eos_token_id": [2, 3], "max_position_embeddings": 4096, "torch_dtype": "x"})
    )
    model = shape({}).model_copy(update={"weights": hub})
    out, done = out_of(tmp_path, model, noisy(model))
    config = read_config(out)
    assert done.beside == ("tokenizer.json",)
    assert (out / "tokenizer.json").read_text() == "{}"
    assert [config[k] for k in ("bos_token_id", "eos_token_id", "max_position_embeddings", "torch_dtype")] == [1, [2, 3], 4096, "float32"]


def test_casts_are_those_of_torch():
    """All 2^16 patterns of bfloat16, and floats around every rounding: ties, overflow, NaN."""
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    narrow = patterns.view(torch.bfloat16)
    wide = cast(patterns.numpy(), "bfloat16", "float32")
    assert np.array_equal(wide, narrow.float().numpy(), equal_nan=True)
    near = (patterns.int().numpy().astype(np.uint32) << 16)[:, None] + np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    floats = near.view(np.float32)
    expected = torch.from_numpy(floats).to(torch.bfloat16)
    got = torch.from_numpy(cast(floats, "float32", "bfloat16")).view(torch.bfloat16)
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.nan_to_num(7.0), expected.nan_to_num(7.0))
    half = torch.from_numpy(cast(floats, "float32", "float16"))
    assert torch.equal(half.nan_to_num(7.0), torch.from_numpy(floats).half().nan_to_num(7.0))
    finite_ones = narrow.isfinite().numpy()
    assert [finite(patterns.numpy()[i : i + 1], "bfloat16") for i in range(0, 1 << 16, 97)] == list(finite_ones[::97])


@pytest.mark.parametrize("module", [hf_names, hf_export], ids=lambda module: module.__name__)
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_export_needs_no_torch():
    code = "import sys, slurmtrain.checkpoint.hf_export, slurmtrain.checkpoint.hf_files; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
