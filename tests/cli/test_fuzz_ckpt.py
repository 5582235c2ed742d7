"""Commands that read manifests, given changed ones under a right sum: they answer, or say in a line why not; no fault of their own."""

from __future__ import annotations

import json
import random
import shutil

import pytest

from tests.checkpoint.fuzz_mutations import mutated_manifest, mutated_state, unsealed
from tests.cli.ckpts import make_run, save
from tests.cli.desk import Desk

STATE = {"v": 1, "position": 7, "metrics": {"loss": 1.5}, "versions": {"torch": "2"}, "job": {"optimizer": {"lr": 0.1}}}
COMMANDS = (
    ("list", "job"),
    ("list", "job", "--json"),
    ("show", "job@20"),
    ("show", "job@20", "--tensors"),
    ("show", "job@20", "--json", "--tensors"),
    ("verify", "job@20"),
    ("verify", "job", "--all", "--policy", "sampled"),
    ("diff", "job@10", "job@20"),
    ("diff", "job@20", "job@10", "--json"),
    ("copy", "job@20", "./copies"),
    ("reshard", "job@20", "--out", "./resharded"),
    ("prune", "job", "--dry-run"),
)


@pytest.mark.parametrize("count", [60, pytest.param(1500, marks=pytest.mark.long)])
def test_no_manifest_is_a_fault_of_a_command(tmp_path, monkeypatch, count):
    desk = Desk(tmp_path)
    monkeypatch.chdir(tmp_path)
    run = make_run(desk)
    save(desk, run, 10, 20, state=STATE)
    path = run.checkpoint(20) / "manifest.json"
    good, ended = path.read_bytes(), {0: 0, 1: 0, 2: 0}
    for seed in range(count):
        rng = random.Random(f"commands {seed}")
        data, how = mutated_state(rng, unsealed(good)) if seed % 3 == 0 else mutated_manifest(rng, good)
        path.write_bytes(data)
        words = COMMANDS[seed % len(COMMANDS)]
        result = desk.type("ckpt", *words)
        shown = f"{seed}: {words}: {how}\n{result.output}"
        assert result.exit_code in ended, shown
        assert "fault of slurmtrain" not in result.output, shown
        assert "Traceback" not in result.output, shown
        result.output.encode()
        if "--json" in words and result.exit_code == 0:
            json.loads(result.stdout)
        ended[result.exit_code] += 1
        for name in ("copies", "resharded"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
    assert ended[0] > count // 6
    assert ended[1] > count // 6
