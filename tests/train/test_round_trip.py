"""Weights that transformers wrote go through a run and come back: the same bits after no step, our logits after some."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from slurmtrain.config.checks import check_job
from slurmtrain.config.load import load_job
from slurmtrain.config.model import ModelConfig
from slurmtrain.models.decoder import Decoder
from slurmtrain.rundir import RunDir
from slurmtrain.train.loop import Ending
from tests.cli.desk import Desk
from tests.models.peers import GPT2, hugging_face, shape
from tests.mpi_world import run_world
from tests.train.runs import Run, make_run, make_site
from tests.train.several import Attempt, several, tensors_of
from tests.train.solo import solo_loop, solo_world

VOCAB = {"vocab": 259}
"""Bytes and the end of a document, and two rows that the data never names; no tp divides it."""
FAMILIES = {
    "llama": {"kv_heads": 2},
    "llama-tied": {"kv_heads": 2, "tied_embeddings": True},
    "qwen2": {"family": "qwen2", "kv_heads": 3, "norm_eps": 1e-6},
    "qwen3": {"family": "qwen3", "kv_heads": 2, "head_dim": 16},
    "gpt2": GPT2,
}
TRAINED = ("llama-tied", "qwen3", "gpt2")
STEPS = 4
JOB = """
[model]
weights = "hub/{family}"
[data]
path = "tokens"
[training]
steps = {steps}
sequence_length = 16
global_batch = 8
micro_batch = 2
[optimizer]
lr = 1e-2
[parallel]
tp = {tp}
pp = {pp}
[slurm]
gpus_per_node = {ranks}
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with what transformers wrote of every family, under hub/, in several files."""
    desk = Desk(tmp_path_factory.mktemp("desk"))
    torch.manual_seed(1)
    for family, change in FAMILIES.items():
        theirs = hugging_face(shape(change | VOCAB))
        for parameter in theirs.parameters():
            parameter.data += torch.randn(parameter.shape) * 0.05
        theirs.tie_weights()
        theirs.save_pretrained(desk.folder / "hub" / family, max_shard_size="40KB")
    return desk


def run_of(desk: Desk, family: str, *, steps=0, ranks=1, tp=1, pp=1) -> Run:
    file = desk.folder / f"{family}-{steps}-{ranks}.toml"
    file.write_text(JOB.format(family=family, steps=steps, ranks=ranks, tp=tp, pp=pp))
    job = load_job(file, env=desk.env)
    check_job(job, make_site())
    return make_run(desk.root / file.stem, job)


def exported(desk: Desk, run: Run):
    out = desk.folder / "out" / run.run.path.name
    done = desk.type("weights", "export", run.run.path.name, "--out", out, "--max-shard-size", "60kB")
    assert done.exit_code == 0, done.output
    return out


def tensors_in(folder):
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 1
    return {name: value for file in files for name, value in load_file(file).items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_step_gives_the_same_bits_back(desk, tmp_path, family):
    run = run_of(desk, family)
    with solo_world(tmp_path):
        assert solo_loop(run)[1].run() == Ending("finished", 0)
    assert [e["text"] for e in run.events("note") if "weights of" in e["text"]]
    original, back = tensors_in(desk.folder / "hub" / family), tensors_in(exported(desk, run))
    assert set(back) == set(original)
    for name, value in original.items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name], value), name


@pytest.fixture(scope="module")
def trained(desk):
    """Runs from those weights under tensor, pipeline and data parallelism, two each; one that trains nothing."""
    layout = {"ranks": 8, "tp": 2, "pp": 2}
    runs = {family: run_of(desk, family, steps=STEPS, **layout) for family in TRAINED}
    still = run_of(desk, "qwen3", **layout)
    attempts = [Attempt(run.run.path) for run in (*runs.values(), still)]
    for told in run_world(several, attempts, tasks_per_node=8, timeout_s=500).results:
        assert told == [Ending("finished", STEPS)] * len(TRAINED) + [Ending("finished", 0)]
    return {**runs, "still": still}


def decoder_of(run: RunDir, model: ModelConfig, step: int) -> Decoder:
    decoder = Decoder(model)
    stored = {name.removeprefix("model/"): value for name, value in tensors_of(run, step).items() if name.startswith("model/")}
    decoder.load_state_dict(stored)
    return decoder


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("family", TRAINED)
def test_trained_over_eight_ranks_transformers_computes_our_logits(desk, trained, family):
    from transformers import AutoModelForCausalLM

    run = trained[family]
    theirs, report = AutoModelForCausalLM.from_pretrained(exported(desk, run), attn_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ours = decoder_of(run.run, shape(FAMILIES[family] | VOCAB), STEPS)
    tokens = torch.randint(0, 259, (2, 31), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        logits = ours(tokens)
        torch.testing.assert_close(theirs.eval()(tokens).logits, logits, rtol=1e-5, atol=1e-5)
    losses = [loss for _, loss, _ in run.steps()]
    assert losses[-1] < losses[0] - 0.5, "it has learned, so that these are not the first weights"


@pytest.mark.mpi
@pytest.mark.slow
def test_no_step_over_eight_ranks_gives_the_same_bits_back(desk, trained):
    original, back = tensors_in(desk.folder / "hub" / "qwen3"), tensors_in(exported(desk, trained["still"]))
    assert set(back) == set(original)
    assert all(torch.equal(back[name], value) for name, value in original.items())
