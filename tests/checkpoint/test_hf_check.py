"""Weights that a run could not load are refused on the login node: from the heads of the files, without torch."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from slurmtrain.checkpoint.hf_check import check_weights
from slurmtrain.config.hf import model_of
from slurmtrain.config.weights import Stored, read_head
from slurmtrain.errors import ConfigError
from tests.cli.desk import Desk, one_line_of
from tests.config.bad_files import GOOD_JOB

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}
LAYER = {
    "self_attn.q_proj": (32, 32),
    "self_attn.k_proj": (16, 32),
    "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32),
    "mlp.gate_proj": (64, 32),
    "mlp.up_proj": (64, 32),
    "mlp.down_proj": (32, 64),
    "input_layernorm": (32,),
    "post_attention_layernorm": (32,),
}
SHAPES = {
    "model.embed_tokens.weight": (300, 32),
    "lm_head.weight": (300, 32),
    "model.norm.weight": (32,),
    **{f"model.layers.0.{name}.weight": shape for name, shape in LAYER.items()},
}
NORM = "model.norm.weight"


@pytest.fixture
def hub(tmp_path):
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}, folder / "model.safetensors")
    return folder


def rewrite(hub, change):
    tensors = load_file(hub / "model.safetensors")
    change(tensors)
    save_file(tensors, hub / "model.safetensors")


def test_whole_weights_pass_and_the_head_is_read_as_the_library_reads_it(hub):
    assert read_head(hub / "model.safetensors") == {name: Stored("F32", shape) for name, shape in SHAPES.items()}
    check_weights(hub, model_of(hub))


def test_a_tied_model_needs_no_head_and_a_head_of_its_own_may_start_from_the_embedding(hub):
    (hub / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    rewrite(hub, lambda tensors: tensors.pop("lm_head.weight"))
    check_weights(hub, model_of(hub))
    check_weights(hub, model_of(hub).model_copy(update={"tied_embeddings": False}))


@pytest.mark.parametrize(
    "damage, says",
    [
        (lambda data: data[:-100], "cut off or damaged: .* bytes of tensors, .* were written: fetch it again"),
        (lambda data: data + b"x", "cut off or damaged"),
        (lambda data: data[:200], r"cut off, or no safetensors \(200 bytes\)"),
        (lambda data: data[:5], r"cut off, or no safetensors \(5 bytes\)"),
        (lambda _: b"", r"cut off, or no safetensors \(0 bytes\)"),
        (lambda _: struct.pack("<Q", 2**63) + b"{}", "cut off, or no safetensors"),
        (lambda _: struct.pack("<Q", 4) + b"[[]]", "cut off, or no safetensors"),
        (lambda _: struct.pack("<Q", 11) + b'{"a":{"b":1}'[:11], "cut off, or no safetensors"),
        (lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "is a pointer of Git LFS"),
    ],
)
def test_a_file_that_is_not_whole_is_named(hub, damage, says):
    path = hub / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigError, match=f"hub/model.safetensors: .*{says}") as caught:
        check_weights(hub, model_of(hub))
    assert "\n" not in str(caught.value)


WRONG = {
    "missing": (lambda tensors: tensors.pop(NORM), f"no tensor {NORM}, which this model needs, among the 11 that it holds"),
    "no head": (lambda tensors: tensors.pop("lm_head.weight"), "no tensor lm_head.weight, which this model needs"),
    "shape": (lambda tensors: tensors.update({NORM: np.zeros(31, np.float32)}), rf"{NORM} has shape \(31,\), \(32,\) in this model"),
    "unknown": (
        lambda tensors: tensors.update({"x.y": np.zeros(1), "z": np.zeros(1)}),
        "x.y, z: this llama model has no",
    ),
    "type": (lambda tensors: tensors.update({NORM: np.zeros(32, np.int8)}), f"{NORM} has elements of type I8: use weights in F64, F32"),
}


@pytest.mark.parametrize("change, says", WRONG.values(), ids=WRONG.keys())
def test_tensors_of_another_model_are_refused_at_submit_and_shown(hub, tmp_path, change, says):
    rewrite(hub, change)
    with pytest.raises(ConfigError, match=says):
        check_weights(hub, model_of(hub))
    desk = Desk(tmp_path)
    desk.job_file.write_text(GOOD_JOB.replace('preset = "tiny"', f'weights = "{hub}"'))
    line = one_line_of(desk.submit("--set", "parallel.pp=1"))
    assert "job.toml: model.weights = " in line
    shown = desk.type("weights", "show", hub)
    assert shown.exit_code == 2
    assert shown.stdout.startswith("# family      llama\n")
    assert len(shown.stderr.splitlines()) == 1


def test_shards_are_read_by_their_index(hub):
    tensors = load_file(hub / "model.safetensors")
    (hub / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, inside in halves.items():
        save_file({name: tensors[name] for name in inside}, hub / file)
    index = {"weight_map": {name: file for file, inside in halves.items() for name in inside}}
    (hub / "model.safetensors.index.json").write_text(json.dumps(index))
    check_weights(hub, model_of(hub))
    index["weight_map"][names[0]] = "b.safetensors"
    (hub / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=rf"b.safetensors: no tensor {names[0]}, which model.safetensors.index.json says is in it"):
        check_weights(hub, model_of(hub))
    for text in ('{"weight_map": {}}', "[" * 100_000):
        (hub / "model.safetensors.index.json").write_text(text)
        with pytest.raises(ConfigError, match=r"model.safetensors.index.json: is damaged"):
            check_weights(hub, model_of(hub))


def test_nothing_heavy_is_loaded():
    code = "import sys; import slurmtrain.checkpoint.hf_check; sys.exit(bool({'torch', 'numpy', 'safetensors'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
