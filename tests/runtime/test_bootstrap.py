"""Real worlds under mpiexec: the promised order, groups and time-outs, ends by agreement, two worlds at once. Few worlds, many checks."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurmtrain.fabric.layout import layout
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.exitfile import ExitRecord, is_follower, read_exit_records
from tests.mpi_world import Finished, cpu_site, run_world, write_run
from tests.runtime.comm_conformance import check_comm

pytestmark = pytest.mark.mpi

# The attempt's order of nodes is neither the launcher's nor the names': world rank is not MPI's own.
NODES = ["n2", "n1"]
PLAN = layout(nodes=2, gpus_per_node=2, tp=2, dp=2)
OTHER_ORDER = ("pp", "tp", "cp", "dp", "ep")


def live_and_leave(folder: str) -> dict[str, Any]:
    """Start from a run folder, look at everything, and end by agreement."""
    import torch
    import torch.distributed as dist

    from slurmtrain.runtime.bootstrap import start_world
    from slurmtrain.runtime.finish import leave
    from slurmtrain.runtime.mesh import build_mesh
    from slurmtrain.runtime.world import Standing

    run, standing = RunDir(Path(folder)), Standing(-1, "")
    world = start_world(run, os.environ, standing)
    assert (standing.rank, standing.node) == (world.rank, world.node)
    check_comm(world.comm)
    mesh = build_mesh(world.plan, world)
    total = torch.tensor(float(world.rank))
    dist.all_reduce(total)
    ranks_by_sum = {}
    for name in ("tp", "dp", "data", "dp_cp"):
        value = torch.tensor(2.0**world.rank)  # the sum's bits name the ranks that took part
        dist.all_reduce(value, group=mesh.group(name))
        ranks_by_sum[name] = [r for r in range(world.size) if int(value) >> r & 1]
    other = layout(nodes=2, gpus_per_node=2, tp=2, pp=2, order=OTHER_ORDER, nvlink_domain="block", block_nodes=2)
    again = build_mesh(other, world)
    flat = mesh.flat("dp_cp")
    seen = {
        "world": (world.rank, world.node, world.node_index, world.local_rank, world.size, str(world.device), world.attempt),
        "sum": total.item(),
        "by_sum": ranks_by_sum,
        "names": mesh.device_mesh.mesh_dim_names,
        "mesh": mesh.device_mesh.mesh.tolist(),
        "sizes": {name: (mesh.size(name), mesh.index(name), mesh.group(name) is None) for name in (*PLAN.order, "data", "dp_cp")},
        "other": {axis: again.ranks(axis) for axis in OTHER_ORDER},
        "other_mesh": again.device_mesh.mesh.tolist(),
        "sub": mesh.device_mesh["tp"].mesh.tolist(),
        "flat": (flat.mesh_dim_names, flat.mesh.tolist(), flat.get_local_rank()),
        "gloo": os.environ["GLOO_SOCKET_IFNAME"],
    }
    seen["code"] = leave(run.attempt(world.attempt), world, "stopped", step=7, reason="requeue")
    return seen


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> tuple[Finished, RunDir]:
    run = RunDir(tmp_path_factory.mktemp("run"))
    write_run(run, PLAN, cpu_site(2), NODES, attempt=2)
    return run_world(live_and_leave, str(run.path), nodes=sorted(NODES), tasks_per_node=2, env={"SLURMTRAIN_ATTEMPT": "2"}), run


def test_world_ranks_are_in_the_attempts_order(world):
    by_mpi_rank = [seen["world"] for seen in world[0].results]
    assert by_mpi_rank == [
        (2, "n1", 1, 0, 4, "cpu", 2),
        (3, "n1", 1, 1, 4, "cpu", 2),
        (0, "n2", 0, 0, 4, "cpu", 2),
        (1, "n2", 0, 1, 4, "cpu", 2),
    ]


def test_groups_hold_the_ranks_of_the_plan(world):
    tp, dp = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    for seen in world[0].results:
        rank = seen["world"][0]
        mine = {"tp": tp[rank // 2], "dp": dp[rank % 2], "data": dp[rank % 2], "dp_cp": dp[rank % 2]}
        assert seen["by_sum"] == mine
        assert seen["sum"] == 6.0
        assert seen["sizes"] == {
            "tp": (2, rank % 2, False),
            **dict.fromkeys(("cp", "ep", "pp"), (1, 0, True)),
            **dict.fromkeys(("dp", "data", "dp_cp"), (2, rank // 2, False)),
        }
        assert seen["gloo"] == "lo"


def test_the_device_mesh_is_named_slowest_first(world):
    for seen in world[0].results:
        rank = seen["world"][0]
        assert seen["names"] == ("pp", "dp", "ep", "cp", "tp")
        assert seen["mesh"] == np.arange(4).reshape(1, 2, 1, 1, 2).tolist()
        assert seen["sub"] == [[0, 1], [2, 3]][rank // 2]
        assert seen["flat"] == (("dp_cp",), [[0, 2], [1, 3]][rank % 2], rank // 2)


def test_another_order_of_axes_is_realised(world):
    for seen in world[0].results:
        rank = seen["world"][0]
        assert seen["other_mesh"] == np.arange(4).reshape(1, 1, 1, 2, 2).tolist()
        assert seen["other"]["pp"] == ((0, 1), (2, 3))[rank // 2]
        assert seen["other"]["tp"] == ((0, 2), (1, 3))[rank % 2]


def test_ranks_that_agree_leave_with_code_0_and_a_record_each(world):
    finished, run = world
    assert finished.rc == 0
    assert [seen["code"] for seen in finished.results] == [0] * 4
    nodes = ["n2", "n2", "n1", "n1"]
    expected = {r: ExitRecord(rank=r, kind="stopped", code=0, step=7, error="requeue", node=nodes[r]) for r in range(4)}
    assert read_exit_records(run.attempt(2).exit_dir) == expected
    assert not list(run.attempt(2).path.glob("rank-*.log"))


def port_of_a_world() -> tuple[int, float]:
    """Port of rank 0's store, seen while another world lives beside."""
    import torch
    import torch.distributed as dist

    from slurmtrain.runtime.bootstrap import join_world

    world = join_world(layout(nodes=1, gpus_per_node=2, dp=2), cpu_site(2), ["n1"], os.environ)
    value = torch.tensor(1.0)
    for _ in range(50):
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        time.sleep(0.02)
    return dist.distributed_c10d._get_default_store().underlying_store.port, value.item() * world.size


def test_two_worlds_on_one_host_at_once_do_not_clash():
    """C56: ports come from the kernel, not from a job id."""
    with ThreadPoolExecutor(2) as pool:
        worlds = [f.result().results for f in [pool.submit(run_world, port_of_a_world) for _ in range(2)]]
    ports = [{port for port, _ in results} for results in worlds]
    assert [len(p) for p in ports] == [1, 1]
    assert ports[0] != ports[1]
    assert {size for results in worlds for _, size in results} == {2.0}


def meet_a_silent_peer_then_fail(folder: str) -> None:
    """Rank 1 misses a collective of the mesh, then raises; rank 0 waits for it in the next one."""
    import torch
    import torch.distributed as dist

    from slurmtrain.runtime.bootstrap import start_world
    from slurmtrain.runtime.finish import guarded
    from slurmtrain.runtime.mesh import build_mesh
    from slurmtrain.runtime.world import Standing

    run = RunDir(Path(folder))

    def train(standing: Standing) -> int:
        world = start_world(run, os.environ, standing)
        mesh = build_mesh(world.plan, world)
        standing.step = 3
        if world.rank == 0:
            started = time.monotonic()
            with pytest.raises(RuntimeError) as late:
                dist.all_reduce(torch.ones(4), group=mesh.group("dp"))
            waited = time.monotonic() - started
            (run.path / "waited").write_text(f"{waited}\n{late.value}")
            world.comm.barrier()
        else:
            world.comm.barrier()
            # A thread that never ends must not keep the rank.
            threading.Thread(target=time.sleep, args=(300,)).start()
            raise ValueError("token 9 is outside\nthe vocabulary")
        dist.all_reduce(torch.ones(4))
        return 0

    guarded(run, 1, train)


def test_a_rank_that_fails_ends_the_world_with_its_error_first(tmp_path):
    run = RunDir(tmp_path)
    write_run(run, layout(nodes=1, gpus_per_node=2, dp=2), cpu_site(2, timeouts={"collective_timeout_s": 2}), ["n1"])
    started = time.monotonic()
    failed = run_world(
        meet_a_silent_peer_then_fail, str(tmp_path), env={"SLURMTRAIN_ATTEMPT": "1"}, check=False, cleanup=False, timeout_s=60
    )
    assert time.monotonic() - started < 30
    assert failed.rc != 0
    records = read_exit_records(run.attempt(1).exit_dir)
    assert records[1] == ExitRecord(1, "error", 1, 3, "ValueError: token 9 is outside the vocabulary", "n1", "rank_crash")
    assert (records[0].kind, records[0].code) == ("error", 1)
    assert [is_follower(records[r].error) for r in range(2)] == [True, False]
    assert "raise ValueError" in run.attempt(1).rank_log(1).read_text()
    assert "rank 1 on n1: ValueError: token 9 is outside the vocabulary" in failed.out
    # The subgroup's collective ended at the site's 2 s, not at torch's 30 minutes, and reads as a lost peer.
    waited, words = (run.path / "waited").read_text().split("\n", 1)
    assert 1.5 < float(waited) < 10
    assert is_follower(words)
