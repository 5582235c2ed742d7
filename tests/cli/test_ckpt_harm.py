"""`slurmtrain ckpt verify` says what is wrong with a harmed checkpoint, by file and tensor, as far as its policy looks."""

from __future__ import annotations

import pytest

from tests.checkpoint.harm import HARMS, POLICIES, make
from tests.cli.ckpts import make_run
from tests.cli.desk import Desk


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.mark.parametrize("kind", HARMS)
def test_what_verify_says(desk, kind):
    run, harm = make_run(desk, f"run-{list(HARMS).index(kind)}"), HARMS[kind]
    for step in (20, 30):
        make(run.checkpoint(step), step)
    harm.deed(run.checkpoint(30))
    for policy in POLICIES:
        result = desk.type("ckpt", "verify", f"{run.name}@30", "--policy", policy)
        said = result.stdout + result.stderr
        if policy not in harm.found:
            assert result.exit_code == 0, said
            assert result.stdout.startswith(f"{run.name}@30: as it was written ({policy}): 3 files, ")
            continue
        assert result.exit_code in {1, 2}, said
        assert all(word in said for word in harm.words), said
        assert "Traceback" not in said
    if kind == "a foreign file beside":
        assert "notes.txt is none of its files" in desk.type("ckpt", "verify", f"{run.name}@30").stderr
