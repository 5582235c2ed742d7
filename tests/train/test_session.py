"""What a session begins with: a checkpoint's whole state, the weights of a folder, or first values."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from slurmtrain.errors import ConfigError
from slurmtrain.runtime.seeds import seed_for
from slurmtrain.store.listing import steps_present
from slurmtrain.train.loop import Ending
from slurmtrain.train.stopping import StopFlag
from tests.train.runs import MODEL, make_data, make_job, make_run
from tests.train.several import tensors_of
from tests.train.solo import solo_loop, solo_world

SMALL = {"steps": 8, "micro_batch": 4}


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory):
    with solo_world(tmp_path_factory.mktemp("group")):
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def ask_at(session, flag, step):
    """Ask for a requeue while a step is under way."""
    inner = session.built.runner.train

    def train(batch, scale):
        flag.given |= {"requeue"} if session.progress.step + 1 == step else set()
        return inner(batch, scale)

    session.built.runner.train = train


def test_everything_that_a_run_carries_comes_back(data, tmp_path):
    """Generators (dropout), moving average, loss scale with its skips, seconds: two attempts are bit for bit one (cases 52, 80)."""
    training = SMALL | {"dtype": "fp16", "loss_scale": {"initial": 2.0**22, "growth_steps": 3}, "ema_decay": 0.5}
    job = make_job(data, gpus=1, training=training, model={"dropout": 0.2, "attention_dropout": 0.1})
    straight, broken = make_run(tmp_path / "straight", job), make_run(tmp_path / "broken", job)
    whole, loop = solo_loop(straight)
    loop.run()
    for attempt, at in ((1, 2), (2, 5)):
        flag = StopFlag()
        session, loop = solo_loop(broken, attempt, flag)
        ask_at(session, flag, at)
        assert loop.run() == Ending("stopped", at, "requeue")
    session, loop = solo_loop(broken, 3)
    before = session.progress.seconds
    loop.run()
    keys = ("step", "loss", "grad_norm", "lr", "scale", "tokens")
    one, many = ([[e[key] for key in keys] for e in run.events("step")] for run in (straight, broken))
    assert many == one
    assert broken.events("skip") == straight.events("skip") != []
    for a, b in zip(whole.average.values, session.average.values, strict=True):
        assert torch.equal(a, b)
    assert any(not torch.equal(a, p.tensor) for a, p in zip(whole.average.values, whole.built.parameters, strict=True))
    assert before > 0
    assert session.marks.gpu_s == pytest.approx(session.progress.seconds), "one device"


def hugging_face(folder, *, seed=3):
    """A folder of Hugging Face's llama (names and shapes of its modeling_llama) with random values."""
    generator, hidden, ffn, vocab = torch.Generator().manual_seed(seed), MODEL["hidden"], MODEL["ffn"], MODEL["vocab"]
    kv = hidden // MODEL["heads"] * MODEL["kv_heads"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}
    for layer in range(MODEL["layers"]):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.self_attn.{n}_proj.weight": (rows, hidden) for n, rows in (("q", hidden), ("k", kv), ("v", kv), ("o", hidden))}
        shapes |= {f"{at}.mlp.{n}_proj.weight": (ffn, hidden) for n in ("gate", "up")} | {f"{at}.mlp.down_proj.weight": (hidden, ffn)}
        shapes |= {f"{at}.{n}_layernorm.weight": (hidden,) for n in ("input", "post_attention")}
    tensors = {name: torch.randn(shape, generator=generator) * 0.02 for name, shape in shapes.items()}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": MODEL["layers"],
        "hidden_size": hidden,
        "num_attention_heads": MODEL["heads"],
        "num_key_value_heads": MODEL["kv_heads"],
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "rope_theta": MODEL["rope_theta"],
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def values(session):
    """Global tensors of a session of one rank, by name."""
    return {part.name: p.tensor[tuple(slice(a, b) for a, b in part.region)] for p in session.built.parameters for part in p.parts}


def test_weights_of_a_folder_are_the_first_values_once(data, tmp_path):
    tensors = hugging_face(tmp_path / "weights")
    job = make_job(data, gpus=1, training=SMALL | {"steps": 2, "ema_decay": 0.9}, model={"weights": tmp_path / "weights"}, every=1)
    run = make_run(tmp_path / "run", job)
    session, loop = solo_loop(run)
    begun = values(session)
    for name, theirs in (
        ("embedding.weight", "model.embed_tokens.weight"),
        ("layers.2.attention.k.weight", "model.layers.2.self_attn.k_proj.weight"),
        ("layers.3.ffn.down.weight", "model.layers.3.mlp.down_proj.weight"),
        ("layers.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("head.weight", "lm_head.weight"),
    ):
        assert torch.equal(begun[name], tensors[theirs]), name
    for average, parameter in zip(session.average.values, session.built.parameters, strict=True):
        assert torch.equal(average, parameter.tensor), "the average starts at the weights that were loaded"
    loop.run()
    (note,) = run.events("note")
    assert note["text"].startswith(f"weights of {tmp_path / 'weights'}: ")
    trained = {name: tensor.clone() for name, tensor in values(session).items()}
    again, _ = solo_loop(run, 2)
    assert steps_present(run.run.checkpoints) == [1, 2]
    assert all(torch.equal(tensor, trained[name]) for name, tensor in values(again).items()), "a checkpoint outweighs the folder"


def test_a_checkpoint_of_another_optimizer_is_refused_by_name(data, tmp_path):
    run = make_run(tmp_path / "run", make_job(data, gpus=1, training=SMALL | {"steps": 1}, optimizer={"name": "sgd", "momentum": 0.9}))
    solo_loop(run)[1].run()
    other = make_run(tmp_path / "other", make_job(data, gpus=1, training=SMALL))
    other.run.checkpoints.rmdir()
    other.run.checkpoints.symlink_to(run.run.checkpoints)
    with pytest.raises(ConfigError, match=r"optimizer\.name.*another optimizer made the checkpoint of step 1"):
        solo_loop(other)


def test_a_rank_without_a_state_of_its_own_is_seeded_by_step_and_place(data, tmp_path, monkeypatch):
    """The rule for other layouts: a place that was there takes its state, a new one is seeded; neither repeats the start."""
    job = make_job(data, gpus=1, training=SMALL | {"steps": 2}, model={"dropout": 0.5})
    run = make_run(tmp_path / "run", job)
    solo_loop(run)[1].run()
    stored = tensors_of(run.run, 2)["rng/pp0-dp0-ep0-cp0-tp0/cpu"]
    solo_loop(run, 2)
    assert torch.equal(torch.get_rng_state(), stored)
    monkeypatch.setattr("slurmtrain.train.session.place_name", lambda _: "pp0-dp1-ep0-cp0-tp0")
    solo_loop(run, 3)
    torch_state = torch.get_rng_state()
    torch.manual_seed(seed_for(job.training.seed + 2, purpose="sharded"))
    assert torch.equal(torch_state, torch.get_rng_state())
    assert not torch.equal(torch_state, stored)
