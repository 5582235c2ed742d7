"""Thousands of changed manifests and files: an error of one line, or the right values; never a crash, a hang, or much memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"manifest": (0, 100), "files": (0, 40), "first": (0, 16)}
LONG = {"manifest": (1000, 5000), "manifest again": (6000, 5000), "files": (1000, 1500), "first": (1000, 500)}


def fuzzed(what: str, first: int, count: int) -> subprocess.Popen:
    """The program, with little memory and few arenas, each of which would count as much more than it holds."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    argv = [sys.executable, "-m", "tests.checkpoint.fuzz", what.partition(" ")[0], str(first), str(count)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


def judged(programs: dict[str, subprocess.Popen]) -> dict[str, dict[str, int]]:
    """What became of the trials of each; fails where one went wrong."""
    found, faults = {}, []
    for what, program in programs.items():
        out, err = program.communicate()
        lines = [json.loads(line) for line in out.splitlines()]
        faults += [f"{one['what']} {one['seed']}: {one['fault']}" for one in lines if "fault" in one]
        if program.returncode or "counts" not in lines[-1]:
            faults.append(f"{what}: code {program.returncode}\n{err}")
            continue
        print(f"{what}: {lines[-1]}")
        faults += [f"{what}: {lines[-1]['peak']} KiB"] if lines[-1]["peak"] > 400_000 else []
        faults += [f"{what}: files stay open"] if lines[-1]["open"] > 12 else []
        found[what] = lines[-1]["counts"]
    assert not faults, "\n".join(faults)
    return found


@pytest.mark.parametrize("trials", [pytest.param(QUICK, id="quick"), pytest.param(LONG, id="long", marks=pytest.mark.long)])
def test_whatever_is_changed(trials):
    """Seeds are the numbers from the first on: the program repeats any (python -m tests.checkpoint.fuzz manifest SEED 1)."""
    found = judged({what: fuzzed(what, *numbers) for what, numbers in trials.items()})
    many = trials["manifest"][1]
    for what in [one for one in trials if one.startswith("manifest")]:
        counts = found[what]
        assert counts["manifest: refused"] > many // 5
        assert counts["index: refused"] > many // 5
        assert counts["index: holds"] > many // 20, "too few get through"
        assert counts["part: loaded"] > many // 20
    files = found["files"]
    assert files["restore full: passed over"] > trials["files"][1] * 2 // 3
    assert files["verify sampled: not found"] > 0
    assert files["verify sizes: not found"] > 0
    assert found["first"]["part: loaded"] > 3
