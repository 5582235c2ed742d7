"""Tokens that do not fit the job are refused on the login node, by `submit`, `--dry-run` and `run` alike."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.desk import Desk, one_line_of


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (("model.vocab=100",), "model.vocab = 100: the tokens in {tokens} have a vocabulary of 257: use 257 or more"),
        (("training.sequence_length=4096",), "a sample takes 4097 tokens, {tokens} has 1481: use 1480 or less, or more text"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_job_that_its_tokens_do_not_fit(desk, sets, says, more):
    line = one_line_of(desk.submit(*(word for text in sets for word in ("--set", text)), *more))
    assert says.format(tokens=desk.folder / "tokens") in line
    assert desk.files() == []


def test_a_folder_that_holds_no_tokens_and_one_that_is_damaged(desk):
    tokens = desk.folder / "tokens"
    os.truncate(tokens / "tokens.bin", 100)
    assert "tokens.bin: short: 100 bytes, 2962 were written: build the folder again" in one_line_of(desk.submit())
    (tokens / "index.json").write_text("{")
    assert "index.json: damaged" in one_line_of(desk.submit())
    (tokens / "index.json").unlink()
    line = one_line_of(desk.submit())
    assert "job.toml: data.path" in line
    assert "slurmtrain data build" in line
    assert desk.files() == []


def test_asking_the_tokens_loads_no_numpy():
    code = "import sys, slurmtrain.cli.assemble; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
