"""Mixtures, other formats and evaluation sets are looked at on the login node, before anything is submitted."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slurmtrain.config.load import load_job
from slurmtrain.data.summary import check_data
from slurmtrain.errors import ConfigError
from tests.cli.desk import Desk, one_line_of
from tests.config.bad_files import GOOD_JOB
from tests.data.token_files import write_folder, write_hdf5, write_pair

TEXT = [[i % 250 for i in range(200)]]
MIXTURE = """[data]
sources = [{ path = "web", weight = 0.7 }, { path = "$CORPUS/code.h5" }, { path = "old" }]
documents = "separate"

[evaluation]
sets = { held = "held" }
every_steps = 50
"""


@pytest.fixture
def desk(tmp_path) -> Desk:
    desk = Desk(tmp_path, env={"CORPUS": str(tmp_path / "corpus")})
    (tmp_path / "corpus").mkdir()
    write_pair(tmp_path / "web", TEXT)
    write_hdf5(tmp_path / "corpus" / "code.h5", TEXT)
    write_folder(tmp_path / "old", TEXT)
    write_folder(tmp_path / "held", TEXT)
    desk.job_file.write_text(GOOD_JOB.replace('[data]\npath = "tokens"\n', MIXTURE))
    return desk


def job_of(desk):
    return load_job(desk.job_file, env=desk.env)


def test_paths_are_seen_from_the_job_file(desk, tmp_path):
    job = job_of(desk)
    assert [one.path for one in job.data.sources] == [tmp_path / "web", tmp_path / "corpus" / "code.h5", tmp_path / "old"]
    assert job.data.path is None
    assert job.evaluation.sets == {"held": tmp_path / "held"}
    check_data(job)


def test_an_unset_variable_names_its_source(desk):
    del desk.env["CORPUS"]
    with pytest.raises(ConfigError, match=r"data\.sources\[1\]\.path = .*\$CORPUS is not set"):
        job_of(desk)


@pytest.mark.parametrize(
    "break_it, says",
    [
        (lambda path: (path / "web.bin").unlink(), "data.sources[0].path: "),
        (lambda path: write_pair(path / "web", [[1]]), "data.sources[0].path = "),
        (lambda path: (path / "corpus" / "code.h5").write_bytes(b"no"), "data.sources[1].path: "),
        (lambda path: write_folder(path / "old", TEXT, vocab=999), "use 999 or more"),
        (lambda path: (path / "held" / "tokens.bin").unlink(), "evaluation.sets.held: "),
    ],
)
def test_what_does_not_fit_is_one_line_with_its_key(desk, tmp_path, break_it, says):
    break_it(tmp_path)
    line = one_line_of(desk.submit())
    assert line.startswith("slurmtrain: ")
    assert says in line
    assert desk.files() == []


def test_answers_that_are_not_marked_and_a_stage_without_scratch(desk):
    assert "data.loss_on" in one_line_of(desk.submit("--set", "data.loss_on=answers"))
    line = one_line_of(desk.submit("--set", "data.stage=local"))
    assert "data.stage = 'local': site mysite has no paths.scratch" in line


def test_pairs_and_folders_are_looked_at_without_numpy(desk, tmp_path):
    (tmp_path / "corpus" / "code.h5").unlink()
    code = (
        "import sys; from pathlib import Path; from slurmtrain.data.summary import summarize; "
        f"summarize(Path({str(tmp_path / 'web')!r})); summarize(Path({str(tmp_path / 'old')!r})); "
        "sys.exit(bool({'numpy', 'h5py', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
