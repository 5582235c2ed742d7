"""A machine that has a Slurm of its own is left alone by the quickstart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from first.detect import find_slurm  # noqa: E402


def nothing():
    return iter(())


def silent(env):
    return ""


def test_a_bare_machine_has_no_slurm(tmp_path):
    assert find_slurm({}, configurations=[tmp_path / "slurm.conf"], daemons=nothing, ask=silent) is None


def test_the_devclusters_own_shell_is_no_foreign_slurm(tmp_path):
    env = {"SLURMTRAIN_SITE": "devcluster", "SLURM_CONF": "/x/slurm.conf"}
    assert find_slurm(env, configurations=[], daemons=nothing, ask=lambda _: "devcluster") is None


@pytest.mark.parametrize("sign", ["file", "variable", "daemon", "ping"])
def test_each_sign_of_a_configured_slurm_counts(sign, tmp_path):
    conf = tmp_path / "slurm.conf"
    if sign == "file":
        conf.write_text("ClusterName=real\n")
    env = {"SLURM_CONF": str(conf)} if sign == "variable" else {}
    daemons = (lambda: iter([("slurmctld", "/usr/sbin/slurmctld -D")])) if sign == "daemon" else nothing
    found = find_slurm(env, configurations=[conf], daemons=daemons, ask=(lambda _: "real") if sign == "ping" else silent)
    assert found is not None
    assert len(found.signs) == 1


def test_quickstart_offers_a_decoy_cluster_and_starts_nothing(tmp_path):
    decoy = tmp_path / "bin"
    decoy.mkdir()
    (decoy / "scontrol").write_text(
        '#!/bin/sh\n[ "$1" = ping ] && echo "Slurmctld(primary) at decoy is UP" || echo "ClusterName             = decoy"\n'
    )
    for forbidden in ("apt-get", "slurmctld", "slurmd", "sbatch"):
        (decoy / forbidden).write_text(f"#!/bin/sh\ntouch {tmp_path}/{forbidden}-was-called\nexit 1\n")
    for program in decoy.iterdir():
        program.chmod(0o755)
    (tmp_path / "slurm.conf").write_text("ClusterName=decoy\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    env |= {"PATH": f"{decoy}:{env['PATH']}", "SLURM_CONF": str(tmp_path / "slurm.conf"), "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, ROOT / "tools/first/quickstart.py"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cluster decoy" in done.stdout
    assert "submit examples/tiny-llama.toml" in done.stdout
    assert not list(tmp_path.glob("*-was-called"))
    assert not (tmp_path / "home").exists()
