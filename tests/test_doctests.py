"""What the docstrings of the torch-free packages show is what happens."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("config", "slurm", "telemetry", "fabric", "store", "steps", "planner", "preflight", "launch", "resilience")
FILES = [*(ROOT / "slurmtrain").glob("*.py"), *(file for package in PACKAGES for file in (ROOT / "slurmtrain" / package).rglob("*.py"))]
WITH_EXAMPLES = sorted(".".join(file.relative_to(ROOT).with_suffix("").parts) for file in FILES if ">>> " in file.read_text())


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_docstrings_are_true(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_leaves_are_among_them():
    assert {"slurmtrain.units", "slurmtrain.boxes", "slurmtrain.rundir", "slurmtrain.errors"} <= set(WITH_EXAMPLES)
