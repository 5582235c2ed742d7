"""The table of peaks knows every GPU that a shipped site names."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from slurmtrain.config.hardware import known_gpus

SITES = sorted((Path(__file__).parents[2] / "site_configs").glob("*.toml"))


@pytest.mark.parametrize("path", SITES, ids=lambda path: path.stem)
def test_gpus_of_shipped_sites(path):
    gpu = tomllib.loads(path.read_text())["node"].get("gpu")
    assert gpu is None or gpu in known_gpus()
