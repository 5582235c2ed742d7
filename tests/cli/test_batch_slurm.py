"""`--batch` on a real cluster: the job does what the command says, whatever its words; its output is where the command said."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from slurmtrain.config.model import ModelConfig
from slurmtrain.data.tokens import TokenFolder
from tests.checkpoint.models import run_of
from tests.data.tiny_tokenizer import tiny_tokenizer
from tests.models.peers import noisy, shape

pytestmark = pytest.mark.slurm

MODEL: ModelConfig = shape({"family": "qwen3", "head_dim": 16, "tied_embeddings": True, "norm_eps": 1e-6})


@pytest.fixture
def bench(cluster, tmp_path):
    """Types `slurmtrain WORDS --batch` in a folder with a nasty name; gives the state that the job ended in, and its output."""
    folder = tmp_path / "it's a $folder"
    folder.mkdir()

    def send(*words: str | Path) -> tuple[str, str]:
        words = (sys.executable, "-m", "slurmtrain.cli.main", *words, "--batch", "-t", "5", "--cpus", "1")
        said = cluster.run(words, cwd=folder)
        job_id = re.fullmatch(r"Submitted batch job (\d+)\n", said.stdout)[1]
        output = Path(re.fullmatch(r"output (.*)\n", said.stderr)[1])
        state = cluster.wait_job(job_id, "COMPLETED", "FAILED", "CANCELLED", timeout_s=90)["JobState"]
        return state, output.read_text()

    return folder, send


def test_data_and_weights_as_jobs(bench):
    folder, send = bench
    tiny_tokenizer(folder / "tok enizer")
    (folder / "a text.txt").write_text("the node trains the model, grüße")
    state, said = send("data", "build", "a text.txt", "--tokenizer", "tok enizer", "--out", "new/to kens")
    assert (state, said.split()[:1]) == ("COMPLETED", ["tokens"]), said
    assert TokenFolder.open(folder / "new" / "to kens").documents == 1
    run_of(folder / "runs", MODEL, (5, noisy(MODEL)))
    state, said = send("weights", "export", "run", "--root", "runs", "--out", "mo del", "--max-shard-size", "20kB")
    assert (state, said.split()[:2]) == ("COMPLETED", ["step", "5"]), said
    assert (folder / "mo del" / "config.json").exists()


def test_a_job_that_fails_says_why_in_its_output(bench):
    folder, send = bench
    (folder / "a.jsonl").write_text("{\n")
    state, said = send("data", "build", "a.jsonl", "--key", "text", "--out", "made")
    assert state == "FAILED"
    assert re.fullmatch(r"slurmtrain: a.jsonl:1: not JSON: .*\n", said)
    assert not (folder / "made").exists()
