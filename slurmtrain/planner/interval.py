"""How often to save: the interval between checkpoints by which a run with failures loses least. Pure.

A run that trains for `interval` seconds, stands still for `stall` seconds while it saves, and loses on average `mtbf` seconds after
its last failure (failures come as a Poisson process) what it did since its last checkpoint, and `restart` seconds besides. J. T. Daly,
"A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006) 303-312:

    expected time of `work` seconds     M e^(R/M) (e^((tau + delta)/M) - 1) work / tau                          (his "complete" model)
    its minimum over tau, delta < 2M    sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9) - delta   (2 % off at delta = M)
    delta >= 2M                         M

The restart time does not move the minimum. For delta far below M what is left of it is sqrt(2 delta M): J. W. Young, "A first order
approximation to the optimum checkpoint interval", Communications of the ACM 17 (1974) 530-531.

The rate of failures of a node is the site's, corrected by what the run has met: with a Gamma prior of shape PRIOR_FAILURES and of the
site's mean, f failures in E node-days leave the mean (PRIOR_FAILURES + f) / (PRIOR_FAILURES / site's + E) (conjugate prior of a Poisson
rate; Gelman et al., "Bayesian Data Analysis", 3rd edition, section 2.6). So the site's word counts as PRIOR_FAILURES failures.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

DAY_S = 86_400.0
PRIOR_FAILURES = 2.0
_LARGEST_EXPONENT = 600.0


@dataclass(frozen=True)
class Seen:
    """What a run has met so far: failures that cost work, in so many node-days of training."""

    failures: int = 0
    node_days: float = 0.0


@dataclass(frozen=True)
class Advice:
    """`seconds`: of training from one save to the next; what it follows from; `useful`: the share of time that is training then."""

    seconds: float
    stall_s: float
    mtbf_s: float
    nodes: int
    failures_per_node_day: float
    site_failures_per_node_day: float
    failures: int
    node_days: float
    restart_s: float
    useful: float

    def to_fields(self) -> dict[str, float]:
        """Plain values, rounded to six digits."""
        return {name: value if isinstance(value, int) else float(f"{value:.6g}") for name, value in asdict(self).items()}


def advise(*, stall_s: float, restart_s: float, nodes: int, site_rate: float, seen: Seen) -> Advice:
    """The best interval of a run on so many nodes. `site_rate`: failures per node-day; times in seconds."""
    rate = failure_rate(site_rate, seen)
    mtbf = mtbf_s(nodes, rate)
    seconds = daly(stall_s, mtbf)
    useful = useful_share(seconds, stall_s, restart_s, mtbf)
    return Advice(seconds, stall_s, mtbf, nodes, rate, site_rate, seen.failures, seen.node_days, restart_s, useful)


def failure_rate(site_rate: float, seen: Seen) -> float:
    """Failures per node-day after what was seen: the posterior mean."""
    return (PRIOR_FAILURES + seen.failures) / (PRIOR_FAILURES / site_rate + seen.node_days)


def mtbf_s(nodes: int, failures_per_node_day: float) -> float:
    """Mean seconds between failures of any of the nodes, which fail independently."""
    return DAY_S / (nodes * failures_per_node_day)


def young(stall_s: float, mtbf_s: float) -> float:
    """Young's interval: seconds of training between two saves."""
    return math.sqrt(2 * stall_s * mtbf_s)


def daly(stall_s: float, mtbf_s: float) -> float:
    """Daly's interval: seconds of training between two saves.

    >>> round(daly(60.0, 3600.0)), round(young(60.0, 3600.0)), daly(60.0, 20.0)
    (618, 657, 20.0)
    """
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    part = stall_s / (2 * mtbf_s)
    return young(stall_s, mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - stall_s


def useful_share(interval_s: float, stall_s: float, restart_s: float, mtbf_s: float) -> float:
    """Training by all of the time, in the long run: work over its expected time."""
    exponent, restart = (interval_s + stall_s) / mtbf_s, restart_s / mtbf_s
    if interval_s <= 0 or exponent + restart > _LARGEST_EXPONENT:
        return 0.0
    return interval_s / (mtbf_s * math.exp(restart) * math.expm1(exponent))
