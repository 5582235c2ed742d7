"""`slurmtrain weights`: a run becomes a folder that transformers reads; a folder becomes the [model] of a job file."""

from __future__ import annotations

import os
import subprocess
import tomllib

import pytest
import torch
from safetensors.torch import load_file

from slurmtrain.config.model import ModelConfig
from tests.checkpoint.models import run_of
from tests.cli.desk import Desk, one_line_of
from tests.fakes.slurm import FakeSlurm
from tests.models.peers import noisy, shape

MODEL = shape({"family": "qwen3", "head_dim": 16, "tied_embeddings": True, "norm_eps": 1e-6})


@pytest.fixture
def desk(tmp_path):
    desk = Desk(tmp_path)
    run_of(desk.root, MODEL, (5, noisy(MODEL)))
    return desk


def model_of(result) -> ModelConfig:
    return ModelConfig(**tomllib.loads(result.stdout)["model"])


def test_a_run_is_exported_and_the_folder_says_what_it_is(desk, tmp_path):
    done = desk.type("weights", "export", "run", "--out", tmp_path / "out", "--dtype", "bf16", "--max-shard-size", "20kB")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "step     5"
    assert lines[1].startswith("tensors  24, bf16, ")
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert lines[1].endswith(f"in {len(files)} files")
    tensors = [value for path in files for value in load_file(path).values()]
    assert {value.dtype for value in tensors} == {torch.bfloat16}
    shown = desk.type("weights", "show", tmp_path / "out")
    assert model_of(shown) == MODEL
    assert f"# parameters  {MODEL.parameters()}" in shown.stdout
    assert f"24 BF16 in {len(files)} files" in shown.stdout


def test_a_run_shows_what_its_job_file_would_say(desk):
    shown = desk.type("weights", "show", "run")
    assert model_of(shown) == MODEL
    assert "# tensors     float32 in the checkpoint of step 5" in shown.stdout
    run_of(desk.folder / "elsewhere", MODEL)
    assert "# tensors     no checkpoint yet" in desk.type("weights", "show", desk.folder / "elsewhere" / "run").stdout


MISTAKES = {
    "no such run": (("export", "nun", "--out", "out"), "no run 'nun' under"),
    "no such step": (("export", "run", "--out", "out", "--step", "7"), "no checkpoint of step 7: there are 5"),
    "no size": (("export", "run", "--out", "out", "--max-shard-size", "big"), "--max-shard-size = 'big': must be a size such as 5GB"),
    "taken": (("export", "run", "--out", "."), ".: is there already"),
    "no average": (("export", "run", "--out", "out", "--ema"), "keeps no moving average"),
    "no type": (("export", "run", "--out", "out", "--dtype", "fp8"), "'fp8' is not one of"),
    "neither": (("show", "nowhere"), "no run 'nowhere' under"),
}


@pytest.mark.parametrize("words, says", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line(desk, monkeypatch, words, says):
    monkeypatch.chdir(desk.folder)
    assert says in one_line_of(desk.type("weights", *words))
    assert not (desk.folder / "out").exists()


@pytest.mark.parametrize(
    "words, says",
    [
        (("show", "runs/run/checkpoints"), "has no config.json"),
        (("show", "text.py"), "is a file: give the folder that it is in"),
        (("show", "runs"), "has no config.json"),
    ],
)
def test_a_path_that_is_no_model_is_told_as_a_path(desk, monkeypatch, words, says):
    monkeypatch.chdir(desk.folder)
    assert says in one_line_of(desk.type("weights", *words))


class Keeping(FakeSlurm):
    """Keeps the text of each script: the file is gone afterwards."""

    def submit(self, script, *, options=()):
        self.text = script.read_text()
        return super().submit(script, options=options)


def test_a_batch_job_exports_what_the_command_says(desk, monkeypatch):
    monkeypatch.chdir(desk.folder)
    desk.slurm = Keeping(desk.clock)
    words = ["export", "run", "--out", "new/my model", "--dtype", "bf16", "--max-shard-size", "20kB", "--step", "5"]
    result = desk.type("weights", *words, "--batch", "-t", "2h", "--cpus", "2")
    assert result.stdout == "Submitted batch job 1\n"
    assert result.stderr == f"output {desk.folder}/new/slurm-weights-my model-1.out\n"
    ((_, options),) = desk.slurm.submitted
    assert {"--job-name=slurmtrain-weights", "--cpus-per-task=2", "--time=02:00:00"} <= set(options)
    assert not (desk.folder / "new" / "my model").exists(), "the command line itself writes nothing"
    subprocess.run(["bash", "-s"], input=desk.slurm.text, text=True, capture_output=True, cwd="/", check=True, env=dict(os.environ))
    made = desk.folder / "new" / "my model"
    once = desk.type("weights", *words[:3], desk.folder / "same", *words[4:])
    assert once.exit_code == 0
    assert {path.name: path.read_bytes() for path in made.iterdir()} == {
        path.name: path.read_bytes() for path in (desk.folder / "same").iterdir()
    }


@pytest.mark.parametrize("name", [name for name in MISTAKES if name not in ("neither", "no average")])
def test_a_mistake_is_told_before_a_job_is_sent(desk, monkeypatch, name):
    monkeypatch.chdir(desk.folder)
    words, says = MISTAKES[name]
    assert says in one_line_of(desk.type("weights", *words, "--batch"))
    assert desk.slurm.submitted == []


def test_a_newer_checkpoint_that_does_not_verify_is_told(desk, tmp_path):
    run, _ = run_of(tmp_path / "two", MODEL, (5, noisy(MODEL)), (9, noisy(MODEL)))
    (path,) = run.checkpoint(9).glob("*.h5")
    path.write_bytes(path.read_bytes()[:-1])
    done = desk.type("weights", "export", run.path, "--out", tmp_path / "out")
    assert done.stdout.startswith("step     5\n")
    assert done.stderr.startswith("note: the checkpoint of step 9 was passed over: ")
