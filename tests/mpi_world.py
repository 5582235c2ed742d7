"""Runs a function, or a command, on N ranks under the wheel's mpiexec, with emulated nodes, a time limit and the output on failure.

    def add(number: int) -> int:                       # at the top level of a test module; runs in every rank
        group = gloo_group()                           # torch.distributed over all ranks, where torch is wanted
        return number + group.rank

    def test_add():
        world = run_world(add, 10, nodes=2, tasks_per_node=1)
        assert world.results == [10, 11]

Arguments and results are pickled: plain data, tensors, slurmtrain's own types (not classes of the test module). A world costs
seconds: let one world check many things and share its results by a module-scoped fixture. `run_command` starts any argv
(`[sys.executable, "-m", "slurmtrain.train", run]`); `SLURMTRAIN_NODE` names the emulated node of each rank.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib.util
import inspect
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from slurmtrain.config.job import JobConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.rundir import RunDir

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "tests" / "zygote.py"
MPIEXEC = Path(sys.executable).with_name("mpiexec")
_ONE_AT_A_TIME = threading.Lock()
_DROPPED = ("SLURM_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "HYDRA_", "MPI_LOCAL", "SLURMTRAIN_")


@dataclass(frozen=True)
class Finished:
    """What a world left: mpiexec's code, all output with ranks in front of the lines, results by rank (None: the rank gave none)."""

    rc: int
    out: str
    results: list[Any] = field(default_factory=list)


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what Slurm or another mpiexec left in it, one thread per rank, plus `extra`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
    path = os.pathsep.join(p for p in (str(ROOT), kept.get("PYTHONPATH", "")) if p)
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", **(extra or {})}


def mpiexec_argv(command: Sequence[str], nodes: Sequence[str], tasks_per_node: int, *, cleanup: bool = True) -> list[str]:
    """One section per emulated node, so that each rank finds its node's name in SLURMTRAIN_NODE."""
    argv = [str(MPIEXEC), "-launcher", "fork", "-rmk", "user", "-prepend-rank"]
    argv += [] if cleanup else ["-disable-auto-cleanup"]
    for index, node in enumerate(nodes):
        argv += [":"] * (index > 0) + ["-n", str(tasks_per_node), "-env", "SLURMTRAIN_NODE", node, *command]
    return argv


def run_command(
    command: Sequence[str],
    *,
    nodes: int | Sequence[str] = 1,
    tasks_per_node: int = 2,
    timeout_s: float = 120,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
    cleanup: bool = True,
) -> Finished:
    """Run the argv on `nodes` (a number, or names) x `tasks_per_node` ranks.

    `cleanup=False`: mpiexec lets the others live on when a rank fails, as srun does without --kill-on-bad-exit.
    Raises AssertionError with the output when the world fails (unless `check=False`) or runs past its limit.
    """
    names = [f"n{i + 1}" for i in range(nodes)] if isinstance(nodes, int) else list(nodes)
    argv = mpiexec_argv(command, names, tasks_per_node, cleanup=cleanup)
    process = subprocess.Popen(
        argv,
        env=clean_environment(env),
        cwd=cwd or ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        out = _end(process)
        raise AssertionError(f"ran past {timeout_s:.0f} s: {' '.join(argv)}\n{out}") from None
    except BaseException:
        _end(process)
        raise
    if check and process.returncode != 0:
        raise AssertionError(f"code {process.returncode}: {' '.join(argv)}\n{out}")
    return Finished(process.returncode, out)


def run_world(
    function: Callable[..., Any],
    *args: Any,
    nodes: int | Sequence[str] = 1,
    tasks_per_node: int = 2,
    timeout_s: float = 120,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    cleanup: bool = True,
    fresh: bool = False,
) -> Finished:
    """Run `function(*args)` on every rank. Raises AssertionError as `run_command` does; a hang shows every rank's stack.

    Ranks are forked from a process that has loaded torch (tests.zygote); `fresh`: each is an interpreter of its own, which has
    loaded nothing.
    """
    source = Path(inspect.getsourcefile(function) or "")
    ranks = (nodes if isinstance(nodes, int) else len(nodes)) * tasks_per_node
    with tempfile.TemporaryDirectory(prefix="world-") as folder:
        (Path(folder) / "args").write_bytes(pickle.dumps(args))
        stacks_after = max(1.0, timeout_s - 5)
        program = [sys.executable, "-m", "tests.mpi_world"] if fresh else [sys.executable, "-S", str(STUB), str(_zygote())]
        command = [*program, str(source), function.__qualname__, folder, str(stacks_after)]
        done = run_command(command, nodes=nodes, tasks_per_node=tasks_per_node, timeout_s=timeout_s, env=env, check=check, cleanup=cleanup)
        files = [Path(folder) / f"result-{rank}" for rank in range(ranks)]
        missing = [rank for rank, file in enumerate(files) if not file.exists()]
        if check and missing:  # mpiexec's own code is 0 when one rank ended well before another failed
            raise AssertionError(f"no result of ranks {missing} of {function.__qualname__}\n{done.out}")
        return Finished(done.rc, done.out, [None if rank in missing else pickle.loads(f.read_bytes()) for rank, f in enumerate(files)])


def _zygote() -> Path:
    with _ONE_AT_A_TIME:
        return _started_zygote()


@cache
def _started_zygote() -> Path:
    """The socket of this session's zygote, which ends when this process does: its standard input is a pipe that closes then."""
    path = Path(tempfile.mkdtemp(prefix="zygote-")) / "socket"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.zygote", str(path)],
        env=clean_environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n", "the zygote did not start"

    def end() -> None:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
        shutil.rmtree(path.parent, ignore_errors=True)

    atexit.register(end)
    return path


def write_run(run: RunDir, plan: Plan, site: SiteConfig, nodes: Sequence[str], *, attempt: int = 1, job: JobConfig | None = None) -> None:
    """What the supervisor leaves for ranks: plan, site, job and the start of an attempt (give ranks SLURMTRAIN_ATTEMPT)."""
    run.create()
    run.attempt(attempt).create()
    run.plan_json.write_text(plan.model_dump_json())
    run.site_json.write_text(site.model_dump_json())
    if job is not None:
        run.job_json.write_text(job.model_dump_json())
    start = {"v": 1, "attempt": attempt, "nodes": list(nodes), "tasks_per_node": plan.gpus_per_node, "world": plan.world}
    run.attempt(attempt).attempt_json.write_text(json.dumps(start))


def cpu_site(tasks_per_node: int, **more: Any) -> SiteConfig:
    """A site of emulated nodes under mpiexec, gloo on the loopback; `more`: other fields, as in a site file."""
    fields = {
        "name": "test",
        "launcher": "mpiexec",
        "device": "cpu",
        "node": {"gpus": tasks_per_node},
        "fabric": {"rendezvous_interface": "lo"},
    }
    return SiteConfig.model_validate({**fields, **more})


@dataclass(frozen=True)
class Group:
    """This rank's place in the world of `gloo_group`."""

    rank: int
    size: int


def launcher_rank() -> tuple[int, int]:
    """(rank, size) as mpiexec's own variables say; no MPI needed."""
    return int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])


def gloo_group(timeout_s: float = 60) -> Group:
    """torch.distributed (gloo) over all ranks of a `run_world`, without MPI: for tests of what needs process groups alone."""
    from datetime import timedelta

    import torch.distributed as dist

    rank, size = launcher_rank()
    store = dist.FileStore(str(Path(os.environ["MPI_WORLD_FOLDER"]) / "store"), size)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))
    return Group(rank, size)


def _end(process: subprocess.Popen[str]) -> str:
    """Kill mpiexec's ranks and itself; the output so far. Its proxy and ranks share the session that `start_new_session` made."""
    try:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
    return out


def _rank_main(source: str, name: str, folder: str, stacks_after_s: str) -> None:
    faulthandler.dump_traceback_later(float(stacks_after_s), exit=True)
    os.environ["MPI_WORLD_FOLDER"] = folder
    spec = importlib.util.spec_from_file_location("world_under_test", source)
    if spec is None or spec.loader is None:
        raise SystemExit(f"cannot import {source}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name)
    result = function(*pickle.loads((Path(folder) / "args").read_bytes()))
    temporary = Path(folder) / f".result-{os.environ['PMI_RANK']}"
    temporary.write_bytes(pickle.dumps(result))
    temporary.rename(temporary.with_name(temporary.name[1:]))
    _end_rank()


def _end_rank() -> None:
    """End without teardown, in which torch may abort over groups that a test left open; MPI must hear of the end where it was started."""
    sys.stdout.flush()
    sys.stderr.flush()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized():
        os._exit(0)


if __name__ == "__main__":
    _rank_main(*sys.argv[1:])
