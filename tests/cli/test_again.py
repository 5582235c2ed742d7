"""The command that `status` offers to go on with a run begins it as it was begun, with --resume."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from slurmtrain.cli.again import again, resume_words
from slurmtrain.rundir import RunDir
from tests.cli.desk import Desk


@pytest.mark.parametrize(
    ("said", "root", "offered"),
    [
        ("submit job.toml -J a --set training.steps=9", "", "submit job.toml -J a --set training.steps=9 --resume"),
        ("submit job.toml --resume --parsable", "", "submit job.toml --resume"),
        ("submit job.toml", "/runs", "submit job.toml --root /runs --resume"),
        ("submit job.toml --root=x", "/runs", "submit job.toml --root=x --resume"),
        ("submit --set a=job job.toml -- --mail-type=END", "", "submit --set a=job job.toml --resume -- --mail-type=END"),
        ("submit /w/job.toml --prepare 12ab -- -v", "", "submit /w/job.toml --resume -- -v"),
        ("run job.toml --site local", "", "run job.toml --site local --resume"),
    ],
)
def test_words(said, root, offered):
    assert shlex.join(resume_words(said.split(), root=root)) == offered


def test_it_is_read_from_the_run_folder_and_can_be_typed(tmp_path, monkeypatch):
    desk = Desk(tmp_path)
    words = ["submit", str(desk.job_file), "--set", "training.steps=150", "--set", "environment.A=it's $HOME"]
    monkeypatch.setattr("sys.argv", ["/venv/bin/slurmtrain", *words])
    assert desk.type(*words).exit_code == 0
    desk.slurm.change("1", state="COMPLETED")
    desk.run().stop.touch()
    offered = shlex.split(json.loads(desk.type("status", "job", "--json").stdout)["next"])
    assert offered[0] == "slurmtrain"
    result = desk.type(*offered[1:])
    assert result.exit_code == 0, result.output
    assert "changed" not in result.stderr
    shutil.copytree(desk.run().path, desk.root / "copy")
    assert again(RunDir(desk.root / "copy"), here=Path.cwd(), root=False) is None, "it would go on with the other run"
    elsewhere = again(desk.run(), here=tmp_path, root=False)
    assert elsewhere is not None
    assert elsewhere.startswith(f"cd {Path.cwd()} && slurmtrain submit ")


def test_a_folder_that_does_not_tell(tmp_path):
    desk = Desk(tmp_path)
    desk.submit()
    assert again(desk.run(), here=tmp_path, root=False) is None
    desk.run().request_json.write_text("{}")
    assert again(desk.run(), here=tmp_path, root=False) is None
