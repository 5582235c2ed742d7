"""What a rank gets: argv, environment, cpus, gpus and binding, as docs/formats.md fixes it."""

from __future__ import annotations

import sys

from slurmtrain.fabric.plan import build_plan
from slurmtrain.resilience.ranks import Setup, check_spec, rank_environment, rank_spec
from slurmtrain.rundir import RunDir
from tests.resilience.runs import job_of, site_of

SITE = {
    "node": {"gpus": 4, "cpus_per_gpu": 6},
    "slurm": {"mpi": "pmix", "cpu_bind": "cores", "gpu_bind": "none"},
    "environment": {"set": {"A": "site", "B": "x y"}},
    "fabric": {"environment": {"NCCL_IB_HCA": "mlx5"}, "rendezvous_interface": "ib0"},
    "python": {"interpreter": "/opt/py/bin/python", "mpi4py_libmpi": "/opt/mpi/lib/libmpi.so"},
}
VERBATIM = {"A": "1,2", "C": "64(x2)", "D": "it's $HOME"}


def setup(tmp_path, **site: object) -> Setup:
    job = job_of("run", nodes=2, gpus=4, steps=1).model_copy(update={"environment": VERBATIM})
    where = site_of("srun", 4, **{**SITE, **site})
    return Setup(RunDir(tmp_path), job, where, build_plan(job, where))


def test_the_jobs_variables_win_over_the_sites_and_all_are_verbatim(tmp_path):
    env = rank_environment(setup(tmp_path), 3, {"HOME": "/root"})
    assert {k: env[k] for k in ("A", "B", "C", "D", "NCCL_IB_HCA")} == {**VERBATIM, "B": "x y", "NCCL_IB_HCA": "mlx5"}
    assert (env["SLURMTRAIN_ATTEMPT"], env["PYTHONPATH"]) == ("3", str(tmp_path / "code"))
    assert env["MPI4PY_LIBMPI"] == "/opt/mpi/lib/libmpi.so"
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"], env["OMP_NUM_THREADS"]) == ("ib0", "ib0", "1")


def test_torchs_flight_recorder_runs_and_its_own_watch_is_above_the_collectives_time_out(tmp_path):
    env = rank_environment(setup(tmp_path), 1, {})
    assert env["TORCH_FR_BUFFER_SIZE"] == "1000"
    assert "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC" not in env, "there is no NCCL"
    gpus = rank_environment(setup(tmp_path, device="cuda", timeouts={"collective_timeout_s": 900}), 1, {"TORCH_FR_BUFFER_SIZE": "5"})
    assert gpus["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "1200"
    assert "TORCH_FR_BUFFER_SIZE" not in gpus, "what somebody has set stays"


def test_what_somebody_has_set_stays(tmp_path):
    given = {"OMP_NUM_THREADS": "8", "GLOO_SOCKET_IFNAME": "eth1", "PYTHONPATH": "/mine"}
    env = rank_environment(setup(tmp_path), 1, given)
    assert "OMP_NUM_THREADS" not in env
    assert "GLOO_SOCKET_IFNAME" not in env
    assert env["PYTHONPATH"] == f"{tmp_path / 'code'}:/mine"


def test_the_step_of_the_world(tmp_path):
    spec = rank_spec(setup(tmp_path), 3, ("n2", "n1"), "12", {})
    assert spec.command == ("/opt/py/bin/python", "-u", "-m", "slurmtrain.train", str(tmp_path))
    assert (spec.nodes, spec.tasks, spec.cpus_per_task, spec.gpus_per_node, spec.mpi) == (("n2", "n1"), 8, 6, 4, "pmix")
    assert (spec.job_id, spec.cwd, spec.output) == ("12", tmp_path / "code", tmp_path / "attempts/0003/node-%n.log")
    assert spec.options == ("--cpu-bind=cores", "--gpu-bind=none")


def test_a_site_without_gpu_gres_asks_for_none_and_the_interpreter_has_a_default(tmp_path):
    bare = setup(tmp_path, slurm={"mpi": "pmi2", "gpus_option": ""}, python={})
    spec = rank_spec(bare, 1, ("n1", "n2"), "12", {})
    assert (spec.gpus_per_node, spec.options, spec.command[0]) == (0, (), sys.executable)


def test_the_check_is_one_task_per_node_without_mpi(tmp_path):
    spec = check_spec(setup(tmp_path), 3, ("n1", "n2"), "12", {})
    assert (spec.tasks, spec.mpi, spec.gpus_per_node) == (2, None, 0)
    assert spec.command[-2:] == ("slurmtrain.preflight.node", str(tmp_path / "attempts/0003/request.json"))


def test_the_command_holds_the_run_alone_so_that_every_start_decides_anew_where_to_resume(tmp_path):
    assert rank_spec(setup(tmp_path), 1, ("n1", "n2"), "12", {}).command == rank_spec(setup(tmp_path), 9, ("n1", "n2"), "12", {}).command
