"""The layers hold: rows import only from rows above their own, and the CLI starts without the heavy packages."""

from __future__ import annotations

import configparser
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "mpi4py", "h5py", "numpy")


def loaded_after(code: str) -> set[str]:
    probe = f"import sys, json\n{code}\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, cwd=ROOT, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_linter_contracts_are_kept():
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_the_cli_loads_nothing_heavy():
    loaded = loaded_after("import slurmtrain.cli.main")
    assert "click" in loaded
    assert not loaded & set(HEAVY)


def test_no_file_is_over_400_lines():
    files = [
        p
        for folder in ("slurmtrain", "tests", "tools", "site_configs", "sbatch_templates")
        for p in (ROOT / folder).rglob("*")
        if p.is_file()
    ]
    long = {
        str(p.relative_to(ROOT)): n for p in files if p.suffix in {".py", ".j2", ".toml", ""} and (n := p.read_bytes().count(b"\n")) > 400
    }
    assert not long


def test_setup_cfg_names_every_package():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    named = set(config["options"]["packages"].split())
    found = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "slurmtrain").rglob("__init__.py")}
    assert named == found | {"slurmtrain.sbatch_templates", "slurmtrain.site_configs"}


@pytest.mark.parametrize("word", ["utils", "common", "core"])
def test_no_package_is_named_for_nothing(word):
    assert not [p for p in (ROOT / "slurmtrain").rglob(f"*{word}*") if p.suffix == ".py" or p.is_dir()]
