"""The parts of tools/devcluster that need no Slurm: specification, folders, configuration, packages, finding processes."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster import conf, packages, ports, procs
from tools.cluster.cli import quote
from tools.cluster.lifecycle import version
from tools.cluster.real import real_cluster
from tools.cluster.spec import DevclusterError, Folder, Ports, Record, Spec, choose_folder

ROOT = Path(__file__).resolve().parents[2]


def record(slurm: tuple[int, int] = (22, 5), **spec: object) -> Record:
    return Record(Spec(**spec), Ports(17000), slurm, "host")


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith(("NodeName=", "PartitionName=")))


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"nodes": 0}, "--nodes 0"),
        ({"nodes": 61}, "--nodes 61"),
        ({"gpus": -1}, "--gpus -1"),
        ({"gpus": 17}, "--gpus 17"),
        ({"nodes": 5, "topology": "block"}, "even number"),
    ],
)
def test_a_specification_that_cannot_be_is_refused(wrong, words):
    with pytest.raises(DevclusterError, match=words):
        Spec(**wrong)


def test_a_record_survives_its_file(tmp_path):
    folder, kept = Folder(tmp_path), record((24, 11), nodes=2, accounting=True)
    folder.record.write_text(kept.to_json())
    assert folder.load() == kept


def test_a_damaged_record_is_an_error_with_a_way_out(tmp_path):
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(DevclusterError, match="down"):
        Folder(tmp_path).load()


@pytest.mark.parametrize(
    "directory, name, environ, expected",
    [
        ("/a/b", "", {}, "/a/b"),
        ("/a/b", "x", {"SLURMTRAIN_DEVCLUSTER_DIR": "/c"}, "/a/b"),
        ("", "", {"SLURMTRAIN_DEVCLUSTER_DIR": "/c", "HOME": "/h"}, "/c"),
        ("", "x", {"SLURMTRAIN_DEVCLUSTER_DIR": "/c", "HOME": "/h"}, "/h/.local/state/slurmtrain/x"),
        ("", "", {"HOME": "/h", "XDG_STATE_HOME": "/s"}, "/s/slurmtrain/devcluster"),
    ],
)
def test_the_folder_is_found(directory, name, environ, expected):
    assert choose_folder(directory, name, environ).root == Path(expected)


@pytest.mark.parametrize("wrong", ["/" + "x" * 70, "/a b", "/a#b", "/a,b", "/a%n"])
def test_a_folder_that_slurm_or_a_socket_cannot_name_is_refused(wrong):
    with pytest.raises(DevclusterError, match="--dir"):
        choose_folder(wrong, "", {})


def test_fast_and_default_timings():
    """The figures are those that the tool was tried with, and Slurm's own defaults."""
    fast = settings(conf.slurm_conf(record(), Folder(Path("/f"))))
    assert (fast["SlurmdTimeout"], fast["KillWait"], fast["MinJobAge"], fast["MaxArraySize"]) == ("10", "5", "10", "11")
    assert fast["AuthInfo"] == "socket=/f/run/munge,cred_expire=5"
    slow = settings(conf.slurm_conf(record(timings="default"), Folder(Path("/f"))))
    assert (slow["SlurmdTimeout"], slow["KillWait"], slow["AuthInfo"][-15:]) == ("300", "30", "cred_expire=120")
    assert "SchedulerParameters" not in slow
    for each in (fast, slow):
        assert (each["ClusterName"], each["KillOnBadExit"], each["WaitTime"], each["ReturnToService"]) == ("devcluster", "0", "0", "2")


def test_clusters_that_run_beside_each_other_give_out_different_job_ids():
    """MPICH names shared memory of a host by job and step: two worlds of one name would meet in it."""
    first = [
        int(settings(conf.slurm_conf(Record(Spec(), Ports(base), (22, 5), "host"), Folder(Path("/f"))))["FirstJobId"])
        for base in range(ports.FIRST, ports.LAST, ports.BLOCK)
    ]
    assert first[0] == 1
    assert min(b - a for a, b in itertools.pairwise(first)) >= 1000
    assert first[-1] < 0x03FF0000 - 1000  # MaxJobId, as slurm.conf(5) has it


def test_nodes_have_a_port_each_and_no_two_daemons_share_one():
    text = conf.slurm_conf(record(nodes=3, gpus=8), Folder(Path("/f")))
    nodes = [line for line in text.splitlines() if line.startswith("NodeName=")]
    taken = [word.partition("=")[2] for line in nodes for word in line.split() if word.startswith("Port=")]
    assert taken == ["17003", "17004", "17005"]
    assert settings(text)["SlurmctldPort"] == "17000"
    assert all("CPUs=16 " in line and "Gres=gpu:8 " in line for line in nodes)


@pytest.mark.parametrize(
    "nodes, expected",
    [
        (1, ["SwitchName=leaf1 Nodes=n1", "SwitchName=spine Switches=leaf1"]),
        (5, ["SwitchName=leaf1 Nodes=n[1-3]", "SwitchName=leaf2 Nodes=n[4-5]", "SwitchName=spine Switches=leaf[1-2]"]),
    ],
)
def test_tree(nodes, expected):
    assert conf.topology_conf(record(nodes=nodes)).splitlines() == expected


def test_blocks_of_two():
    text = conf.topology_conf(record((24, 11), nodes=4, topology="block"))
    assert text.splitlines() == ["BlockName=b1 Nodes=n[1-2]", "BlockName=b2 Nodes=n[3-4]", "BlockSizes=2"]


def test_the_version_decides_about_cgroups():
    assert conf.files(record((22, 5)), Folder(Path("/f")))["cgroup.conf"] == "CgroupPlugin=cgroup/v1\n"
    assert conf.files(record((24, 11)), Folder(Path("/f")))["cgroup.conf"] == "CgroupPlugin=disabled\n"
    assert version("slurm-wlm 22.05.8\n") == (22, 5)
    assert version("slurm 24.11.5") == (24, 11)
    with pytest.raises(DevclusterError, match="no version"):
        version("")


@pytest.mark.parametrize("value", ["plain", "it's $HOME", "a\\b", "x\ny", "`id` | $(id)"])
def test_quoted_values_reach_a_shell_unchanged(value):
    assert shlex.split(quote(value)) == [value]
    assert subprocess.run(["sh", "-c", f"printf %s {quote(value)}"], capture_output=True, text=True, check=True).stdout == value


def test_two_that_choose_ports_at_once_get_different_ones():
    with ports.free_block(5) as first, ports.free_block(5) as second:
        assert abs(first.base - second.base) >= 5


def test_a_name_is_held_once():
    lock = ports.hold("test-a-name-is-held-once")
    assert lock is not None
    with lock:
        assert ports.hold("test-a-name-is-held-once") is None
    again = ports.hold("test-a-name-is-held-once")
    assert again is not None
    again.close()


@pytest.mark.parametrize("before", [None, "#!/bin/sh\nexit 0\n"])
def test_the_policy_denies_during_an_installation_and_comes_back(tmp_path, before):
    policy = tmp_path / "policy-rc.d"
    if before:
        policy.write_text(before)
        policy.chmod(0o755)

    def interrupted() -> None:
        with packages.no_daemon_starts(policy):
            assert subprocess.run([policy, "slurmctld", "start"], check=False).returncode == 101
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (policy.read_text() if policy.exists() else None) == before
    assert {p.name for p in tmp_path.iterdir()} <= {"policy-rc.d"}


def test_an_installation_that_was_killed_does_not_cost_the_policy(tmp_path):
    policy, saved = tmp_path / "policy-rc.d", tmp_path / "policy-rc.d.before-devcluster"
    saved.write_text("the administrator's")
    policy.write_text(packages.DENY_ALL)
    with packages.no_daemon_starts(policy):
        pass
    assert policy.read_text() == "the administrator's"


def test_apt_is_asked_again_after_an_update():
    calls: list[list[str]] = []

    def apt(arguments):
        calls.append(list(arguments))
        return 100 if len(calls) == 1 else 0

    packages.apt_install(["munge"], apt)
    assert [call[0] for call in calls] == ["install", "update", "install"]
    with pytest.raises(DevclusterError, match="code 100"):
        packages.apt_install(["munge"], lambda arguments: 100)


def test_missing_packages_are_named_with_the_command(tmp_path):
    for program in ("munged", "slurmctld", "srun"):
        (tmp_path / program).touch(mode=0o755)
    assert packages.missing_packages(accounting=False, search=str(tmp_path)) == ["slurmd", "slurm-wlm-basic-plugins"]
    with pytest.raises(DevclusterError, match=r"slurmd .*run `devcluster install`"):
        packages.need_programs(accounting=False, search=str(tmp_path))


def test_nothing_is_installed_where_a_real_cluster_is(tmp_path):
    decoy = tmp_path / "etc/slurm/slurm.conf"
    decoy.parent.mkdir(parents=True)
    assert real_cluster({}, tmp_path) == ""
    decoy.touch()
    assert real_cluster({}, tmp_path) == str(decoy)
    with pytest.raises(DevclusterError, match="has a Slurm already"):
        packages.install(accounting=False, environ={"SLURM_CONF": str(decoy)}, search=str(tmp_path))


def test_a_devcluster_is_no_real_cluster(tmp_path):
    (tmp_path / "cluster.json").touch()
    assert real_cluster({"SLURM_CONF": str(tmp_path / "etc/slurm.conf")}, tmp_path / "nowhere") == ""


def test_a_daemon_of_another_cluster_shows_it(tmp_path):
    daemon = tmp_path / "slurmd"
    daemon.symlink_to("/bin/sleep")
    running = subprocess.Popen([daemon, "60"], env={})
    try:
        assert real_cluster({}, tmp_path) == f"slurmd runs (pid {running.pid})"
    finally:
        running.kill()
        running.wait()


def test_processes_are_found_by_environment_open_file_and_descent(tmp_path):
    folder = Folder(tmp_path)
    folder.node("n1").mkdir(parents=True)
    log = folder.node("n1") / "slurmd.log"
    marks = {"SLURMD_NODENAME": "n1", "SLURM_CONF": str(folder.slurm_conf)}
    with open(log, "w") as held:
        step = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], stdout=held, env={"PATH": os.environ["PATH"]})
    rank = subprocess.Popen(["sleep", "60"], env={**marks, "PATH": os.environ["PATH"]})
    other = subprocess.Popen(["sleep", "60"], env={**marks, "SLURM_CONF": "/other/slurm.conf", "PATH": os.environ["PATH"]})
    try:
        while len(family := procs.descendants([step.pid], procs.snapshot())) < 2:
            pass
        found = {p.pid for p in procs.daemons_of(folder, "n1")}
        assert found == family
        assert {p.pid for p in procs.jobs_of(folder, "n1")} == {rank.pid}
        assert procs.end_all(lambda: procs.daemons_of(folder, "n1")) == 2
        assert (step.wait(), rank.poll(), other.poll()) == (-9, None, None)
    finally:
        for process in (step, rank, other):
            process.kill()
            process.wait()


def test_a_chroot_hides_nothing():
    assert procs.under("/root/of/it/c/nodes/n1/slurmd.log", Path("/c/nodes/n1"), "/root/of/it")
    assert procs.under("/c/nodes/n1/slurmd.log", Path("/c/nodes/n1"), "")
    assert not procs.under("/c/nodes/n10/slurmd.log", Path("/c/nodes/n1"), "")


def test_the_tool_needs_the_standard_library_alone():
    argv = [sys.executable, "-E", "-s", "-S", ROOT / "tools/devcluster", "--help"]
    said = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (said.returncode, "tools/devcluster up" in said.stdout) == (0, True), said.stderr
