"""A wheel carries what an installed slurmtrain needs: the folders that administrators edit, presets, the command."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_wheel_holds_templates_sites_and_presets(tmp_path):
    source = tmp_path / "source"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    quiet = ["--quiet", "--no-deps", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", *quiet, "-w", str(tmp_path), str(source)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    sites = {f"slurmtrain/site_configs/{p.name}" for p in (ROOT / "site_configs").glob("*.toml")}
    templates = {f"slurmtrain/sbatch_templates/{p.name}" for p in (ROOT / "sbatch_templates").glob("*.j2")}
    presets = {f"slurmtrain/config/presets/{p.name}" for p in (ROOT / "slurmtrain/config/presets").glob("*.toml")}
    assert len(sites) >= 7
    assert len(templates) >= 2
    assert presets
    assert sites | templates | presets <= names
    assert not [n for n in names if n.startswith(("tests/", "tools/"))]
