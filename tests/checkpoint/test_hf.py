"""First values out of folders that transformers wrote: every family, any box, any element type; what is wrong is one line."""

from __future__ import annotations

import json
import random
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from slurmtrain.boxes import Box, Part
from slurmtrain.checkpoint.hf import load_weights
from slurmtrain.checkpoint.hf_names import places
from slurmtrain.config.hf import model_keys, read_config
from slurmtrain.config.model import ModelConfig
from slurmtrain.errors import CheckpointError, ConfigError
from slurmtrain.models.decoder import Decoder
from slurmtrain.models.names import global_shapes
from tests.checkpoint.models import parts_of, whole_part
from tests.models.peers import GPT2, VARIANTS, hugging_face, shape

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def saved(folder, change, *, dtype=torch.float32, shards="20KB"):
    """Transformers' model of a shape with values of its own, and the folder that it wrote."""
    torch.manual_seed(1)
    theirs = hugging_face(shape(change))
    for parameter in theirs.parameters():
        parameter.data = (parameter.data + torch.randn(parameter.shape) * 0.05).to(dtype)
    theirs.tie_weights()
    theirs.save_pretrained(folder, max_shard_size=shards)
    return theirs


def ours_of(folder, **change):
    model = ModelConfig(**(model_keys(read_config(folder)) | change))
    ours = Decoder(model)
    return ours, load_weights(folder, model, parts_of(ours))


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_those_of_the_model_that_was_saved(tmp_path, change):
    theirs = saved(tmp_path, change)
    ours, loaded = ours_of(tmp_path)
    tokens = torch.randint(0, 67, (2, 31), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)
    assert loaded.files > 1
    assert loaded.casts == ()


@pytest.mark.parametrize("change", [{"family": "qwen2", "kv_heads": 2}, GPT2 | {"ffn": 56}], ids=["qwen2", "gpt2"])
def test_any_box_is_that_of_the_whole(tmp_path, change):
    saved(tmp_path, change)
    ours, _ = ours_of(tmp_path)
    values, dice = dict(ours.named_parameters()), random.Random(4)
    entries, expected = [], []
    for name, size in global_shapes(ours.model).items():
        for _ in range(4):
            offset = tuple(dice.randrange(n) for n in size)
            extent = tuple(dice.randint(1, n - o) for o, n in zip(offset, size, strict=True))
            pad = tuple(n + 2 for n in extent)  # the part lies in the middle of a larger local tensor
            region = tuple((1, 1 + n) for n in extent)
            entries.append((Part(name, size, Box(offset, extent), region), torch.full(pad, 7.0)))
            cut = values[name][tuple(slice(o, o + n) for o, n in zip(offset, extent, strict=True))]
            expected.append(torch.nn.functional.pad(cut.detach(), (1, 1) * len(size), value=7.0))
    load_weights(tmp_path, ours.model, entries)
    assert all(torch.equal(got, want) for (_, got), want in zip(entries, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_types_are_cast_and_the_cast_is_told(tmp_path, dtype):
    theirs = saved(tmp_path, {"kv_heads": 2}, dtype=dtype)
    ours, loaded = ours_of(tmp_path)
    assert torch.equal(ours.embedding.weight, theirs.get_input_embeddings().weight.float())
    assert loaded.casts == (f"{str(dtype).removeprefix('torch.')} to float32",)
    assert "cast from" in loaded.line
    half = [(part, tensor.to(torch.float64)) for part, tensor in parts_of(ours)]
    assert load_weights(tmp_path, ours.model, half).casts[0].endswith("to float64")


def test_an_untied_job_starts_its_head_from_the_tied_embedding(tmp_path):
    """torchtitan issue 1999: the import of tied weights fails."""
    saved(tmp_path, {"tied_embeddings": True})
    ours, _ = ours_of(tmp_path, tied_embeddings=False)
    assert torch.equal(ours.head.weight, ours.embedding.weight)
    assert ours.head.weight.std() > 0.01


def test_a_head_beside_tied_embeddings_is_no_surplus(tmp_path):
    saved(tmp_path, {"tied_embeddings": True}, shards="5GB")
    tensors = load_file(tmp_path / SINGLE)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, tmp_path / SINGLE)
    ours, _ = ours_of(tmp_path)
    assert ours.head is None


@pytest.mark.parametrize("change", [{}, GPT2], ids=["llama", "gpt2"])
def test_names_of_a_model_saved_without_its_head_and_buffers_of_old_files(tmp_path, change):
    """The hub's gpt2 has `h.0.ln_1.weight` and `h.0.attn.bias`, a mask."""
    saved(tmp_path, change | {"tied_embeddings": True}, shards="5GB")
    tensors = {name.partition(".")[2]: value for name, value in load_file(tmp_path / SINGLE).items()}
    masks = {"h.0.attn.bias": torch.ones(1, 1, 4, 4)} if change else {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    ours, _ = ours_of(tmp_path)
    save_file(tensors | masks, tmp_path / SINGLE)
    again, _ = ours_of(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("change", [{}, {"family": "qwen2"}, {"family": "qwen3"}, GPT2], ids=["llama", "qwen2", "qwen3", "gpt2"])
def test_places_are_every_tensor_of_transformers(change):
    model = shape(change)
    theirs = {name: tuple(p.shape) for name, p in hugging_face(model).named_parameters()}
    assert {place.name: place.shape for place in places(model).values()} == theirs


@pytest.fixture
def folder(tmp_path):
    saved(tmp_path, {"kv_heads": 2})
    return tmp_path


def shard_of(folder, name):
    return folder / json.loads((folder / INDEX).read_text())["weight_map"][name]


def edit(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def failure(folder):
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        ours_of(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


NORM = "model.norm.weight"


def test_a_tensor_that_the_index_does_not_name(folder):
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"][NORM]
    (folder / INDEX).write_text(json.dumps(index))
    assert f"{folder}: no tensor model.norm.weight, which this model needs, among the 20 that it holds" in failure(folder)


def test_a_tensor_that_is_not_where_the_index_says(folder):
    path = shard_of(folder, NORM)
    edit(path, lambda tensors: tensors.pop(NORM))
    assert f"{path}: no tensor {NORM}, which the index says is in it" in failure(folder)


def test_a_tensor_of_another_shape(folder):
    path = shard_of(folder, NORM)
    edit(path, lambda tensors: tensors.update({NORM: torch.ones(47)}))
    assert f"{path}: {NORM} has shape (47,), (48,) in this model" in failure(folder)


def test_a_tensor_of_numbers_that_are_no_weights(folder):
    path = shard_of(folder, NORM)
    edit(path, lambda tensors: tensors.update({NORM: torch.ones(48, dtype=torch.int8)}))
    assert f"{NORM} has elements of type I8: use weights in F64, F32, F16, BF16" in failure(folder)


def test_a_tensor_that_the_family_has_not(folder):
    index = json.loads((folder / INDEX).read_text())
    bias = "model.layers.0.self_attn.q_proj.bias"
    index["weight_map"][bias] = index["weight_map"][NORM]
    (folder / INDEX).write_text(json.dumps(index))
    assert f"{bias}: this llama model has no such tensor" in failure(folder)


def test_a_file_that_is_missing(folder):
    path = shard_of(folder, NORM)
    path.unlink()
    assert f"names {path.name}, which is not beside it" in failure(folder)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_file_that_is_cut_off(folder, keep):
    path = shard_of(folder, NORM)
    path.write_bytes(path.read_bytes()[:keep])
    assert f"{path}: cut off or damaged, fetch it again" in failure(folder)


def test_a_page_of_a_web_server_under_the_name_of_weights(folder):
    path = shard_of(folder, NORM)
    path.write_bytes(struct.pack("<Q", 1 << 40) + b"<html>")
    assert f"{path}: cut off or damaged" in failure(folder)


def test_only_what_is_wanted_is_read(folder):
    """A rank without the last norm does not open the file that has it alone."""
    path = shard_of(folder, NORM)
    path.write_bytes(b"")
    model = shape({"kv_heads": 2})
    embedding = torch.empty(67, 48)
    assert shard_of(folder, "model.embed_tokens.weight") != path
    loaded = load_weights(folder, model, [(whole_part("embedding.weight", embedding), embedding)])
    assert (loaded.boxes, loaded.files) == (1, 1)
