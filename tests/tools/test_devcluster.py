"""tools/devcluster: a real cluster comes up, runs jobs, loses nodes, comes back and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.fixtures_slurm import devcluster, need_slurm, start, suite_with_blocks
from tools.cluster import suites
from tools.cluster.spec import Folder

pytestmark = pytest.mark.slurm


@pytest.fixture
def own(tmp_path_factory):
    """A folder for a cluster of the test's own, ended afterwards."""
    need_slurm()
    folder = tmp_path_factory.mktemp("own") / "c"
    yield folder
    devcluster("down", "--dir", str(folder))


def mentions(folder: Path) -> list[str]:
    """Every running process whose environment, arguments or open files name the folder, this one left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            text += b" ".join(os.fsencode(fd.readlink()) for fd in (entry / "fd").iterdir())
        except OSError:
            continue
        if os.fsencode(folder) in text:
            found.append(f"{entry.name} {text[-200:]!r}")
    return found


def test_ranks_get_the_gpus_they_asked_for(cluster):
    show = ["bash", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"]
    said = cluster.run(["srun", "-w", "n5,n6", "--ntasks-per-node=2", "--gpus-per-node=2", *show]).stdout
    assert sorted(said.splitlines()) == ["n5 0,1", "n5 0,1", "n6 0,1", "n6 0,1"]
    said = cluster.run(["srun", "-w", "n5", "--exclusive", "--mem=0", "--gpus-per-node=4", *show]).stdout
    assert said.split() == ["n5", "0,1,2,3"]
    refused = cluster.run(["srun", "-N1", "--gpus-per-node=5", "true"], check=False)
    assert refused.returncode != 0


def test_nodes_hang_under_two_leaf_switches(cluster):
    show = ["bash", "-c", "echo $SLURM_TOPOLOGY_ADDR"]
    said = cluster.run(["srun", "-N6", *show]).stdout.split()
    assert sorted(said) == [f"spine.leaf{1 if i <= 3 else 2}.n{i}" for i in range(1, 7)]


def test_mpi_ranks_of_two_nodes_form_one_world(cluster, tmp_path):
    script = tmp_path / "world.py"
    script.write_text(
        "from mpi4py import MPI\n"
        "world = MPI.COMM_WORLD\n"
        "node = world.Split_type(MPI.COMM_TYPE_SHARED)\n"
        "print(world.size, node.size, world.allreduce(world.rank), flush=True)\n"
    )
    said = cluster.run(["srun", "-N2", "--ntasks-per-node=2", "--mpi=pmi2", sys.executable, script], timeout_s=90).stdout
    assert said.splitlines() == ["4 2 6"] * 4


REQUEUED = """#!/bin/bash
#SBATCH -N2 --requeue --open-mode=append -o out.txt
echo "start $SLURM_JOB_NODELIST ${SLURM_RESTART_COUNT:-0}"
if [ "${SLURM_RESTART_COUNT:-0}" = 1 ]; then exit 0; fi
srun --overlap -N2 -n2 bash -c 'sleep 600 & sleep 600'
"""


@pytest.mark.long
def test_a_failed_node_makes_the_job_run_elsewhere(healthy_cluster, tmp_path):
    cluster = healthy_cluster
    (tmp_path / "job.sh").write_text(REQUEUED)
    job = cluster.sbatch("job.sh", cwd=tmp_path)
    cluster.wait("the step", lambda: f"{job}.0" in cluster.run(["squeue", "-hs", "-o", "%i"]).stdout)
    lost = cluster.job(job)["BatchHost"]
    cluster.fail(lost)
    last = cluster.wait_job(job, "COMPLETED", timeout_s=90)
    assert last["Restarts"] == "1"
    first, second = (tmp_path / "out.txt").read_text().splitlines()
    assert first.endswith(" 0")
    assert second.endswith(" 1")
    assert lost not in cluster.run(["scontrol", "show", "hostnames", second.split()[1]]).stdout.split()
    cluster.restore(lost)
    assert cluster.run(["srun", "-w", lost, "hostname"]).returncode == 0


def test_fail_ends_even_processes_that_left_their_step(healthy_cluster, tmp_path):
    cluster = healthy_cluster
    hide = f"setsid sleep 601 & echo $! > {tmp_path}/pid; env -i sleep 602 & echo $! > {tmp_path}/bare; touch {tmp_path}/ready; wait"
    job = cluster.sbatch("-w", "n6", "--no-requeue", "-o", "/dev/null", "--wrap", hide, cwd=tmp_path)
    cluster.wait("the script", (tmp_path / "ready").exists)
    pids = [int((tmp_path / name).read_text()) for name in ("pid", "bare")]
    assert all(state(pid) in "SR" for pid in pids)
    cluster.fail("n6")
    assert [state(pid) for pid in pids] == ["", ""]
    cluster.restore("n6")
    assert cluster.wait_job(job, timeout_s=30)["JobState"] == "NODE_FAIL"


def state(pid: int) -> str:
    """The process's state letter, empty when it has ended."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""
    return "" if letter in "ZX" else letter


def test_a_hung_node_stops_and_goes_on(healthy_cluster, tmp_path):
    cluster = healthy_cluster
    loop = f"echo $$ > {tmp_path}/pid; while ! test -e {tmp_path}/end; do sleep 0.1; done"
    job = cluster.sbatch("-w", "n4", "-o", "/dev/null", "--wrap", f"srun bash -c '{loop}'", cwd=tmp_path)
    cluster.wait("the rank", (tmp_path / "pid").exists)
    pid = int((tmp_path / "pid").read_text())
    cluster.hang("n4")
    assert state(pid) == "T"
    cluster.restore("n4")
    assert state(pid) in "SR"
    (tmp_path / "end").touch()
    assert cluster.wait_job(job)["JobState"] == "COMPLETED"


def test_down_leaves_nothing(own, tmp_path):
    cluster = start(own, "--nodes", "2", "--gpus", "1")
    hide = f"setsid sleep 603 & echo $! > {tmp_path}/pid; wait"
    cluster.sbatch("-w", "n1", "-o", "/dev/null", "--wrap", hide, cwd=tmp_path)
    cluster.wait("the job", (tmp_path / "pid").exists)
    ports = [int(row.split()[1]) for row in cluster.run(["sinfo", "-hN", "-p", "main", "-O", "NodeHost,Port"]).stdout.splitlines()]
    cluster.hang("n1")
    cluster.fail("n2")
    assert len(mentions(own)) > 3
    ended = devcluster("down", "--dir", str(own))
    assert ended.returncode == 0, ended.stderr
    assert not own.exists()
    assert mentions(own) == []
    assert state(int((tmp_path / "pid").read_text())) == ""
    assert str(own) not in Path("/proc/mounts").read_text() + Path("/proc/net/unix").read_text()
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert devcluster("env", "--dir", str(own)).returncode == 2


def test_up_again_finds_repairs_or_rebuilds(own):
    cluster = start(own, "--nodes", "2")
    again = devcluster("up", "--nodes", "2", "--dir", str(own))
    assert again.stdout.startswith("already up")
    other = devcluster("up", "--nodes", "3", "--dir", str(own))
    assert (other.returncode, "2 nodes" in other.stderr) == (2, True)
    for role in ("slurmctld", "n2"):  # before any job: slurmctld killed before it has saved a job's end believes it to run
        os.kill(int((own / "run" / f"{role}.pid").read_text()), signal.SIGKILL)
    assert devcluster("status", "--dir", str(own)).returncode == 1
    repaired = devcluster("up", "--nodes", "2", "--dir", str(own))
    assert repaired.stdout.startswith("repaired"), repaired.stderr
    assert "slurmctld n2" in repaired.stdout
    healthy = devcluster("status", "--dir", str(own))
    assert healthy.returncode == 0, healthy.stdout
    cluster.run(["srun", "-N2", "true"])
    for pid_file in (own / "run").glob("[!-]*.pid"):
        if "own" not in pid_file.name:
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
    rebuilt = devcluster("up", "--nodes", "2", "--dir", str(own))
    assert "rebuilt" in rebuilt.stdout, rebuilt.stderr
    cluster.run(["srun", "-N2", "true"])


def test_two_clusters_do_not_meet(cluster, own, tmp_path):
    other = start(own, "--nodes", "2", "--gpus", "0", "--timings", "default")
    job = cluster.sbatch("-w", "n1", "-o", "/dev/null", "--wrap", f"while ! test -e {tmp_path}/end; do sleep 0.1; done", cwd=tmp_path)
    cluster.wait_job(job, "RUNNING")
    assert other.run(["squeue", "-h"]).stdout == ""
    assert "SlurmdTimeout           = 300 sec" in other.run(["scontrol", "show", "config"]).stdout
    other.fail("n1")
    assert cluster.job(job)["JobState"] == "RUNNING"
    assert devcluster("down", "--dir", str(own)).returncode == 0
    (tmp_path / "end").touch()
    assert cluster.wait_job(job)["JobState"] == "COMPLETED"


def test_tasks_know_their_nvlink_block(block_cluster):
    said = block_cluster.run(["srun", "-N4", "--segment=2", "bash", "-c", "echo $SLURM_TOPOLOGY_ADDR"]).stdout.split()
    blocks = {address.partition(".")[0] for address in said}
    assert len(said) == 4
    assert len(blocks) == 2
    assert all(int(node[1:]) in (2 * int(block[1:]) - 1, 2 * int(block[1:])) for block, node in (a.split(".") for a in said))


def test_another_suites_cluster_runs_this_python_and_leaves_no_mount(own, tmp_path):
    cluster = start(own, "--nodes", "2", *(suite_with_blocks() or ["--topology", "block"]))
    script = tmp_path / "world.py"
    script.write_text("from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(1), flush=True)\n")
    job = cluster.sbatch("-N2", "-o", "out.txt", "--wrap", f"srun -N2 -n2 {sys.executable} {script}", cwd=tmp_path)
    assert cluster.wait_job(job)["JobState"] == "COMPLETED", (tmp_path / "out.txt").read_text()
    assert (tmp_path / "out.txt").read_text().split() == ["2", "2"]
    cluster.fail("n2")
    cluster.restore("n2")
    assert devcluster("down", "--dir", str(own)).returncode == 0
    assert not own.exists()
    assert str(suites.view(Folder(own))) not in Path("/proc/mounts").read_text()


@pytest.mark.long
def test_sacct_remembers_a_requeued_job(own, tmp_path):
    cluster = start(own, "--nodes", "2", "--gpus", "1", "--accounting")
    job = cluster.sbatch("-w", "n1", "--requeue", "-o", "/dev/null", "--wrap", 'test -n "$SLURM_RESTART_COUNT" || sleep 600', cwd=tmp_path)
    cluster.wait_job(job, "RUNNING")
    cluster.run(["scontrol", "requeue", job])
    cluster.wait_job(job, "COMPLETED", timeout_s=60)

    def shown() -> list[str]:
        return cluster.run(["sacct", "-X", "-n", "-P", "--duplicates", "-j", job, "-o", "State"]).stdout.split()

    cluster.wait("both runs in sacct", lambda: shown() == ["REQUEUED", "COMPLETED"], 30)
