"""A machine that has a Slurm of its own is left alone by the quickstart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from first.detect import find_slurm  # noqa: E402


def silent(env):
    return ""


def test_a_bare_machine_has_no_slurm():
    assert find_slurm({}, shows=silent, ask=silent) is None


def test_the_devclusters_own_shell_is_no_foreign_slurm():
    env = {"SLURMTRAIN_DEVCLUSTER_DIR": "/x", "SLURM_CONF": "/x/etc/slurm.conf"}
    assert find_slurm(env, shows=silent, ask=lambda _: "devcluster") is None


def test_a_configuration_or_daemon_counts_and_so_does_an_answer():
    configured = find_slurm({}, shows=lambda _: "/etc/slurm/slurm.conf", ask=silent)
    answering = find_slurm({}, shows=silent, ask=lambda _: "big")
    assert configured is not None
    assert configured.signs == ("/etc/slurm/slurm.conf",)
    assert answering is not None
    assert answering.cluster == "big"


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
