"""examples/health: the scripts for slurmd, as slurmd runs them: no PATH, real programs, and never a code that drains."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SITE = 'name = "here"\ndevice = "cpu"\n[slurm]\ngpus_option = ""\n[node]\ngpus = 1\n[preflight]\nskip = ["shm-room"]\n'
BROKEN = (
    SITE
    + """[preflight.commands]
nvme = "/bin/sh -c 'exit 2'"
"""
)


@pytest.fixture
def run(tmp_path):
    """Run a script; (exit code, what went to the log, the metrics' file)."""

    def run(script: str, site: str, slurmtrain: Path = ROOT / ".venv/bin/slurmtrain") -> tuple[int, str, Path]:
        (tmp_path / "here.toml").write_text(site)
        env = {
            "SLURMTRAIN": str(slurmtrain),
            "SLURMTRAIN_SITE": str(tmp_path / "here.toml"),
            "METRICS": str(tmp_path / "preflight.prom"),
            "LOGGER": "logger --no-act --stderr --socket-errors=off",
            "SLURMD_NODENAME": "n7",
            "SLURM_JOB_ID": "33",
        }
        path = ROOT / "examples" / "health" / script
        done = subprocess.run([path], env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == ""
        return done.returncode, done.stderr, tmp_path / "preflight.prom"

    return run


def test_a_healthy_node_is_told_by_the_health_check_alone(run):
    code, log, metrics = run("healthcheck.sh", SITE)
    assert code == 0, log
    assert "PREFLIGHT OK - 1 node fit" in log
    assert "<30>" in log, "daemon.info"
    assert 'slurmtrain_preflight_node_ok{node="n7"} 1.0' in metrics.read_text()
    assert run("prolog.sh", SITE)[:2] == (0, "")


def test_a_node_with_a_fault_is_told_by_all_and_only_the_health_check_says_so_by_its_code(run):
    code, log, metrics = run("healthcheck.sh", BROKEN)
    assert code == 2, log
    assert "<27>" in log, "daemon.err"
    assert "PREFLIGHT CRITICAL - n7: site-command: nvme: exit code 2" in log
    assert 'slurmtrain_preflight_ok{node="n7",check="site-command"} 0.0' in metrics.read_text()
    code, log, _ = run("epilog.sh", BROKEN)
    assert code == 0, "Slurm would drain the node"
    assert "after job 33: PREFLIGHT CRITICAL" in log


@pytest.mark.parametrize(("script", "code"), [("healthcheck.sh", 3), ("prolog.sh", 0), ("epilog.sh", 0)])
def test_without_slurmtrain_nothing_is_known_and_no_job_is_held(run, script, code):
    got, log, _ = run(script, SITE, Path("/nowhere/slurmtrain"))
    assert got == code
    assert "PREFLIGHT UNKNOWN - /nowhere/slurmtrain" in log
