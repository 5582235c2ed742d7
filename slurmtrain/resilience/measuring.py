"""What nodes and links reach, measured before an attempt whose job says preflight = "full": after the quick answers, of nodes that passed.

| a node | is measured |
|---|---|
| that was fit at this level within preflight.cache_s, and all the others, too | no: nothing went wrong with it since (preflight/cache.py) |
| of fewer than all | with all: what is measured is mostly between nodes |

What is found is added to what the check of the nodes has found, and is treated alike: exclude.json, spares, too few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slurmtrain.errors import ConfigError, LaunchError
from slurmtrain.preflight.asking import CheckResult
from slurmtrain.preflight.cache import recently_fit
from slurmtrain.preflight.history import history_path, read_newest
from slurmtrain.preflight.judge import NodeFault
from slurmtrain.preflight.ledger import FullResult
from slurmtrain.preflight.measuring import site_baseline
from slurmtrain.preflight.request import Request
from slurmtrain.resilience.calls import called_away
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.exclude import read_exclusions
from slurmtrain.resilience.ranks import check_spec
from slurmtrain.slurm.hostlist import fold
from slurmtrain.units import counted

_SHOWN_PAIRS = 4


@dataclass(frozen=True)
class Measured:
    """`result`: of the check, with what was measured. `full`: whether anything was."""

    result: CheckResult
    full: FullResult = field(default_factory=FullResult)
    measured: bool = False


def measured(c: Composition, attempt: int, request: Request, result: CheckResult, nodes: Sequence[str], *, again: bool) -> Measured:
    """Measure those of the nodes that have passed their check. `again`: this start of the job has made an attempt before.

    Raises LaunchError, OSError.
    """
    fit = result.fit(nodes)
    if c.setup.job.preflight != "full" or result.interrupted or not fit or _known(c, fit):
        return Measured(result)
    c.say(f"{counted(len(fit), 'node')}: what devices, links and storage reach is measured")
    base = check_spec(c.setup, attempt, fit, c.allocation.step_job_id, c.environ)
    baseline = site_baseline(request, c.environ, c.say)
    try:
        full = c.measure(c.launcher, base, request, baseline, c.clock, c.say, called=lambda: called_away(c, again=again))
    except ConfigError as error:
        raise LaunchError(str(error)) from error
    if full.interrupted:
        return Measured(replace(result, interrupted=True), full, measured=True)
    _tell(c, full)
    return Measured(joined(result, full), full, measured=True)


def joined(result: CheckResult, full: FullResult) -> CheckResult:
    """The check's result with what was measured: nodes that are to be left out are faults as any other."""
    faults = tuple(NodeFault(node, str(one)) for node, one in full.bad.items())
    return replace(
        result, faults=(*result.faults, *faults), findings=(*result.findings, *full.findings), seconds=result.seconds + full.seconds
    )


def _known(c: Composition, nodes: Sequence[str]) -> bool:
    """Whether all of them were fit a short while ago."""
    site, now = c.setup.site, c.clock.time()
    try:
        path = history_path(site, c.run.path.parent, c.environ)
    except ConfigError:
        return False  # told where the history is written
    if path is None:
        return False
    avoided = set(read_exclusions(c.run.exclude_json, now))
    fit = recently_fit(read_newest(path), nodes, "full", now, site.preflight.cache_s, avoided=avoided)
    if fit < set(nodes):
        return False
    c.say(f"{counted(len(nodes), 'node')} not measured again: fit less than {site.preflight.cache_s} s ago")
    return True


def _tell(c: Composition, full: FullResult) -> None:
    if full.untested:
        shown = ", ".join(f"{one}-{other}" for one, other in full.untested[:_SHOWN_PAIRS])
        c.say(f"{counted(len(full.untested), 'pair')} of nodes not measured for want of time (preflight.pairs_s): {shown}, ...")
    c.say(f"measured in {full.seconds:.1f} s{f'; out: {fold(full.bad)}' if full.bad else ''}")
