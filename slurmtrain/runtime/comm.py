"""The one door to MPI: a small communicator Protocol, mpi4py behind it, and the check that MPI formed the world that was started.

MPI is used from the main thread, for the bootstrap and the last barrier alone. `mpi4py.rc.finalize` is off: MPI_Finalize waits for
all peers, so a rank that fails must be able to leave without it; `finalize` is called where all ranks have agreed to end.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError, LaunchError, SlurmtrainError, one_line

T = TypeVar("T")


class Comm(Protocol):
    """Ranks that talk; every method but the properties is collective. Values are anything that pickles."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def allgather(self, value: T) -> list[T]:
        """Everybody's values, by rank."""

    def bcast(self, value: T) -> T:
        """Rank 0's value."""

    def split(self, key: int) -> Comm:
        """The same ranks in ascending order of their keys (MPI_Comm_split of one colour)."""

    def barrier(self) -> None:
        """Wait until all are here, without limit."""

    def finalize(self) -> None:
        """Leave MPI; the last call of all ranks."""


class MpiComm:
    """An MPI communicator."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self._comm = mpi, comm

    @property
    def rank(self) -> int:
        return int(self._comm.rank)

    @property
    def size(self) -> int:
        return int(self._comm.size)

    @property
    def library(self) -> str:
        """First line of the MPI library's own description."""
        return one_line(str(self._mpi.Get_library_version()).splitlines()[0], 60)

    def allgather(self, value: T) -> list[T]:
        return list(self._comm.allgather(value))

    def bcast(self, value: T) -> T:
        received: T = self._comm.bcast(value, root=0)
        return received

    def split(self, key: int) -> MpiComm:
        return MpiComm(self._mpi, self._comm.Split(0, key))

    def barrier(self) -> None:
        self._comm.Barrier()

    def finalize(self) -> None:
        if not self._mpi.Is_finalized():
            self._mpi.Finalize()


def start_mpi() -> MpiComm:
    """Initialise MPI (once) and give its world. Raises ConfigError where mpi4py or its MPI library cannot be loaded."""
    try:
        rc: Any = importlib.import_module("mpi4py").rc
        rc.finalize, rc.thread_level = False, "funneled"
        mpi: Any = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError, OSError) as error:
        raise ConfigError(
            f"no MPI library can be loaded ({one_line(str(error), 120)}): name the site's libmpi.so here (it becomes MPI4PY_LIBMPI), load "
            "its module in environment.modules, or install the extra slurmtrain[mpich]",
            where="site",
            key="python.mpi4py_libmpi",
        ) from error
    return MpiComm(mpi, mpi.COMM_WORLD)


def started_tasks(environ: Mapping[str, str], launcher: str) -> int | None:
    """How many tasks the launcher of this world says it started; None where it does not say.

    SLURM_NTASKS counts only under srun: in a batch shell, from which mpiexec may run, it is the allocation's.
    """
    names = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if launcher == "srun" else ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), None)


def check_size(found: int, started: int | None, plan: Plan, site: SiteConfig, library: str = "") -> None:
    """Compare MPI's size, the launcher's count and the plan. Raises LaunchError with the numbers and the likely cause."""
    who = "Slurm" if site.launcher == "srun" else "mpiexec"
    ranks = f"{found} rank{'s' * (found != 1)}"
    if started is not None and found != started:
        hint = (
            f"srun --mpi=none? The site says slurm.mpi = {site.slurm.mpi!r}, try: srun --mpi=list"
            if site.launcher == "srun"
            else f"is this mpiexec of another MPI than mpi4py's library ({library})?"
        )
        raise LaunchError(f"MPI sees {ranks} but {who} started {started}: {hint}")
    if found != plan.world:
        raise LaunchError(
            f"MPI sees {ranks}, plan.json says a world of {plan.world} ({plan.nodes} nodes x {plan.gpus_per_node}): "
            f"start {plan.world} tasks, {plan.gpus_per_node} per node"
        )


def raise_together(comm: Comm, error: SlurmtrainError | None) -> None:
    """Collective: when any rank has an error, all raise that of the lowest such rank, so that nobody waits for a rank that left."""
    first = next((e for e in comm.allgather(error) if e is not None), None)
    if first is not None:
        raise first
