"""All that a preflight may look at, one line each, and whether it is made at a site. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slurmtrain.config.site import SiteConfig
from slurmtrain.preflight.registry import all_checks, all_sources
from slurmtrain.preflight.request import Request

MPI_WORLD = "mpi-world"
OF_ALL = {MPI_WORLD: "MPI forms one world of a process on each node, of the right size (the command alone; a start sees it by itself)"}
"""What is asked of all nodes together."""
MEASURED = {
    "probe": "a process for each device starts, and answers",
    "matmul": "operations a second of each device, against the baseline or its peers",
    "matmul-result": "devices of one kind compute the same product, bit for bit",
    "domain-reduce": "all-reduce within each NVLink domain",
    "world-reduce": "all-reduce between all nodes; a bad node is searched for",
    "pair": "the link between two nodes, every pair that there is time for",
    "nic-rate": "ib_write_bw of each NIC and direction: 80 % of its nominal rate",
    "storage-rate": "writing to and reading from the shared folder, all nodes at once",
    "transport": "NCCL has chosen what the site expects, and not sockets",
}
"""What a full preflight measures."""
_OF_NODES = ("node", "slurm")
"""Under which names stands what is found of a node besides."""


@dataclass(frozen=True)
class Listed:
    """A check. `part`: quick, or full alone; `why`: it is not made at this site, or it keeps no node out; empty: it is as any other."""

    name: str
    about: str
    part: str
    made: bool
    why: str = ""


def names() -> tuple[str, ...]:
    """All names by which checks may be left out, tolerated, or asked for alone."""
    return (*(check.name for check in all_checks()), *OF_ALL, *MEASURED)


def listing(request: Request) -> list[Listed]:
    """For a site: whether each check is made there, or why not."""
    quick = [_listed(check.name, check.about, "quick", request, there=check.wanted(request)) for check in all_checks()]
    of_all = [_listed(name, about, "quick", request, there=True) for name, about in OF_ALL.items()]
    return [*quick, *of_all, *(_listed(name, about, "full", request, there=_measured(name, request)) for name, about in MEASURED.items())]


def wanted(name: str, request: Request) -> bool:
    """Whether one of OF_ALL and MEASURED is made: not where it is skipped, or others alone are asked for."""
    return name not in request.site.preflight.skip and (not request.only or name in request.only)


def made_at(request: Request) -> list[str]:
    """Those of MEASURED that a full preflight makes."""
    return [name for name in MEASURED if wanted(name, request) and _measured(name, request)]


def unknown_names(given: Iterable[str]) -> list[str]:
    known = set(names())
    return [name for name in given if name not in known]


def misnamed(site: SiteConfig) -> dict[str, list[str]]:
    """By key of the site, what preflight.skip and preflight.tolerate name and nothing is called."""
    known = {*names(), *(source.name for source in all_sources()), *_OF_NODES}
    said = {"preflight.skip": site.preflight.skip, "preflight.tolerate": site.preflight.tolerate}
    return {key: wrong for key, given in said.items() if (wrong := [name for name in given if name not in known])}


def _measured(name: str, request: Request) -> bool:
    site = request.site
    fast = site.fabric.kind in {"infiniband", "roce"}
    if name == "nic-rate":
        return fast and site.fabric.nic_gbps > 0
    if name == "pair":
        return site.preflight.pairs_s > 0
    return name != "transport" or (request.on_gpus and (fast or bool(site.preflight.expect)))


def _listed(name: str, about: str, part: str, request: Request, *, there: bool) -> Listed:
    preflight = request.site.preflight
    if name in preflight.skip:
        return Listed(name, about, part, made=False, why="left out by preflight.skip")
    if not there:
        return Listed(name, about, part, made=False, why="not at this site, or the site file does not tell of it")
    return Listed(name, about, part, made=True, why="a warning at most: preflight.tolerate" if name in preflight.tolerate else "")
