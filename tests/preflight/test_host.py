"""Memory, control groups, interfaces and left-over ranks, from recorded files and from this machine."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager

import psutil
import pytest

from slurmtrain.preflight.checks import host_leftovers, host_tasks, interface_bond, interface_hsn, interface_up, memory_errors, memory_free
from slurmtrain.preflight.sources import host, interface, memory, processes
from tests.fakes.clock import FakeClock
from tests.preflight.tree import Tree, here, judged, request

GIB = 1 << 30
MEMINFO = "MemTotal:       2113406444 kB\nMemFree:        2012000000 kB\nMemAvailable:   2050000000 kB\nHugePages_Total:       0"
JOB = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"


@pytest.fixture
def tree(tmp_path) -> Tree:
    made = Tree(tmp_path)
    made.write("/proc/meminfo", MEMINFO)
    (tmp_path / "dev/shm").mkdir(parents=True)
    return made


def site(**changes):
    return {"node": {"gpus": 8, "memory_bytes": 1_900_000_000_000}, **changes}


MINE = {
    "SLURMTRAIN_RUN": "/runs/a",
    "SLURMTRAIN_ATTEMPT": "3",
    "SLURMTRAIN_NODE": f"node-of-{os.getpid()}",
    "SLURM_JOB_ID": "7",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
}
"""The marks of the process that looks."""


class TestMemory:
    def test_this_machine_by_what_psutil_finds(self):
        seen, known = memory.look(here(), request()), psutil.virtual_memory()
        assert seen["total_bytes"] == known.total
        assert seen["available_bytes"] <= known.total
        assert seen["shm"]["total_bytes"] == psutil.disk_usage("/dev/shm").total

    def test_without_a_control_group_it_is_the_kernels_number(self, tree):
        seen = memory.look(tree.machine(), request())
        assert (seen["total_bytes"], seen["available_bytes"]) == (2113406444 * 1024, 2050000000 * 1024)
        assert seen["limit_bytes"] == seen["total_bytes"]

    def test_a_limit_of_version_2_on_any_level(self, tree):
        tree.write("/proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0")
        tree.write(f"{JOB}/step_0/user/task_0/memory.max", "max")
        tree.write(f"{JOB}/memory.max", 64 * GIB)
        tree.write(f"{JOB}/memory.current", 40 * GIB)
        tree.write(f"{JOB}/memory.stat", f"anon {GIB}\ninactive_file {30 * GIB}\nactive_file 0")
        seen = memory.look(tree.machine(), request())
        assert (seen["limit_bytes"], seen["available_bytes"]) == (64 * GIB, 54 * GIB)

    def test_a_limit_of_version_1_and_a_container_that_sees_its_group_as_the_root(self, tree):
        tree.write("/proc/self/cgroup", "9:memory:/slurm/uid_0/job_7\n3:cpuset:/\n0::/")
        tree.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", 10 * GIB)
        tree.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", 9 * GIB)
        tree.write("/sys/fs/cgroup/memory/memory.stat", f"total_inactive_file {GIB}\ninactive_file 1")
        assert memory.look(tree.machine(), request())["available_bytes"] == 2 * GIB

    @pytest.mark.parametrize(
        ("available_kb", "gpus", "free", "fit"),
        [
            (1_669_921_875, 8, 0.9, True),  # 0.9 x 1.9e12 bytes
            (1_669_921_874, 8, 0.9, False),
            (834_960_938, 4, 0.9, True),  # half of the node
            (100, 8, 0.0, True),
        ],
    )
    def test_what_must_be_free_is_the_jobs_share(self, tree, available_kb, gpus, free, fit):
        tree.write("/proc/meminfo", MEMINFO.replace("2050000000", str(available_kb)))
        wish = request(site=site(preflight={"memory_free": free}), gpus_per_node=gpus)
        assert (judged(memory_free.CHECK, memory.look(tree.machine(), wish), wish) == []) is fit
        assert not memory_free.CHECK.wanted(request(site={"node": {"gpus": 8}})), "a site that says nothing is held to nothing"

    def test_errors_that_were_not_corrected(self, tree):
        for name, count in (("mc0", 0), ("mc1", 3)):
            tree.write(f"/sys/devices/system/edac/mc/{name}/ue_count", count)
        told = judged(memory_errors.CHECK, memory.look(tree.machine(), request()), request())
        assert told == [("fail", "mc1: 3 memory errors since boot that could not be corrected")]


class TestSystem:
    def test_this_machine_has_room(self):
        assert judged(host_tasks.CHECK, host.look(here(), request(gpus_per_node=1)), request(gpus_per_node=1)) == []

    def test_the_least_of_groups_and_kernel_counts(self, tree):
        tree.write("/proc/sys/kernel/threads-max", 100_000)
        tree.write("/proc/loadavg", "0.50 0.40 0.30 2/1234 4711")
        tree.write("/proc/sys/fs/file-nr", "30016\t16\t9223372036854775807")
        assert host.look(tree.machine(), request()) == {"tasks_room": 98_766, "files_used": 30_000, "files_most": 9223372036854775807}
        tree.write("/proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7")
        tree.write(f"{JOB}/pids.max", 512)
        tree.write(f"{JOB}/pids.current", 12)
        assert host.look(tree.machine(), request())["tasks_room"] == 500

    def test_a_kernel_that_tells_nothing_limits_nothing(self, tree):
        assert host.look(tree.machine(), request()) == {"tasks_room": None, "files_used": 0, "files_most": 0}


class TestInterfaces:
    def net(self, tree: Tree, name: str, state: str = "up", flags: str = "0x1003", **files):
        for key, text in {"operstate": state, "flags": flags, "mtu": 1500, **files}.items():
            tree.write(f"/sys/class/net/{name}/{key}", text)

    def look(self, tree: Tree, **addresses):
        return interface.look(tree.machine(), request(), lambda: addresses)

    def test_this_machines_loopback(self):
        wish = request(site={"fabric": {"rendezvous_interface": "lo"}})
        seen = interface.look(here(), wish)
        assert judged(interface_up.CHECK, seen, wish) == []
        assert seen["interfaces"]["lo"]["mtu"] == psutil.net_if_stats()["lo"].mtu
        assert set(seen["interfaces"]) == set(psutil.net_if_stats())

    @pytest.mark.parametrize(
        ("state", "flags", "addresses", "said"),
        [
            ("up", "0x1003", ["10.0.0.1"], []),
            ("unknown", "0x1003", ["10.0.0.1"], []),  # tunnels, some virtual cards
            ("down", "0x1002", ["10.0.0.1"], [("fail", "ib0: it is switched off")]),
            ("lowerlayerdown", "0x1003", ["10.0.0.1"], [("fail", "ib0: its state is lowerlayerdown")]),
            ("up", "0x1003", [], [("fail", "ib0: it has no address")]),
        ],
    )
    def test_states_of_the_one_that_the_site_names(self, tree, state, flags, addresses, said):
        self.net(tree, "ib0", state, flags)
        wish = request(site={"fabric": {"rendezvous_interface": "ib0"}})
        assert judged(interface_up.CHECK, self.look(tree, ib0=addresses), wish) == said

    def test_a_bond_without_one_of_its_legs(self, tree):
        tree.write("/sys/class/net/bonding_masters", "bond0")
        self.net(tree, "bond0", **{"bonding/slaves": "eth0 eth1"})
        self.net(tree, "eth0")
        self.net(tree, "eth1", "down")
        wish = request(site={"fabric": {"rendezvous_interface": "bond0"}})
        assert judged(interface_bond.CHECK, self.look(tree), wish) == [("warn", "bond0: eth1, a part of it, is down")]

    def test_slingshot_by_speed_where_the_driver_tells_it(self, tree):
        wish = request(site={"fabric": {"kind": "slingshot", "nics_per_node": 2, "nic_gbps": 200}})
        self.net(tree, "hsn0", speed=200000)
        self.net(tree, "hsn1", speed=-1)
        assert judged(interface_hsn.CHECK, self.look(tree), wish) == []
        self.net(tree, "hsn0", speed=100000)
        assert judged(interface_hsn.CHECK, self.look(tree), wish) == [("fail", "hsn0: runs at 100 Gb/s, 200 wanted")]


class TestLeftovers:
    """Real processes of this machine with a rank's marks in their environment."""

    @contextmanager
    def rank(self, **marks: str):
        env = {"PATH": os.environ["PATH"], **MINE, **marks}
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env) as process:
            try:
                yield process
            finally:
                process.kill()

    def look(self, clock=None, wish=None, **marks: str):
        machine = here()
        machine = type(machine)(machine.shell, {**MINE, **marks}, clock or FakeClock())
        return processes.look(machine, wish or request())["left"]

    @pytest.mark.parametrize(
        ("marks", "found"),
        [
            ({"SLURMTRAIN_ATTEMPT": "2"}, True),
            ({}, False),  # this attempt's
            ({"SLURMTRAIN_ATTEMPT": "4"}, False),
            ({"SLURMTRAIN_ATTEMPT": "2", "SLURMTRAIN_NODE": "n2"}, False),  # another node, emulated here
            ({"SLURMTRAIN_RUN": "/runs/b"}, False),  # another run in the same job
            ({"SLURMTRAIN_RUN": "/runs/b", "SLURM_JOB_ID": "6"}, True),  # of a job before, and the whole node is ours
            ({"SLURMTRAIN_RUN": "/runs/b", "SLURM_JOB_ID": "6", "SLURM_CONF": "/other/slurm.conf"}, False),
            ({"SLURMTRAIN_RUN": "/runs/b", "SLURM_JOB_ID": ""}, False),
            ({"SLURMTRAIN_ATTEMPT": ""}, False),  # an agent
        ],
    )
    def test_who_is_one(self, marks, found):
        with self.rank(**marks) as process:
            assert [one["pid"] for one in self.look()] == ([process.pid] if found else [])

    def test_on_a_part_of_a_node_another_job_of_this_user_is_a_neighbour(self):
        with self.rank(SLURMTRAIN_RUN="/runs/b", SLURM_JOB_ID="6"):
            assert self.look(wish=request(gpus_per_node=4)) == []
            assert self.look(wish=request(site={"slurm": {"exclusive": False}})) == []

    def test_one_that_is_going_is_waited_for_and_one_that_stays_is_told(self):
        clock = FakeClock()
        with self.rank(SLURMTRAIN_ATTEMPT="1") as process:
            clock.at(2.0, lambda: (process.kill(), process.wait()))
            assert self.look(clock) == []
            assert 2.0 <= sum(clock.slept) <= 3.0
        with self.rank(SLURMTRAIN_ATTEMPT="1") as process:
            left = self.look()
            told = judged(host_leftovers.CHECK, {"left": left}, request())
            assert told == [("fail", f"process {process.pid}: a process of attempt 1 of /runs/a (job 7) is still there")]
