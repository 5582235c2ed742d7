"""How many spare nodes to ask for: the number that gives most useful GPU-hours for each billed one. Pure.

A job begins with n nodes of the world and k spares, and every node fails alone, `rate` times in its time. Of the first k losses those
that hit the world cost a start in place; loss k + 1, which always hits it, and the time limit T end the job, which then waits for
its next start:

    N(t), nodes lost by then              binomial: n + k nodes, each lost with q = 1 - e^(-rate t); the job lives while N <= k
    mean time with j nodes lost           P(N(T) > j) / ((n + k - j) rate), j = 0 .. k: as many losses happen in that time as leave it
    mean number of j-th losses            P(N(T) >= j); one hits the world with n / (n + k - j + 1)

    useful = n (time of the job - start - starts in place x restart)
    billed = (n + k - j) nodes for the time with j lost, and `wait_billed` x n nodes for the wait

Work between the last checkpoint and a loss is lost whether there are spares or not, and is left out. The wait counts because the run's
nodes stand by for it (a reservation), or because the run is to end some day; `wait_billed = 0` leaves it out, and hardly any job
then wants spares. Derived here; the binomial is Kokolis et al., arXiv 2410.21680, who take failures of nodes as independent, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SiteConfig
from slurmtrain.planner.interval import DAY_S
from slurmtrain.units import counted, format_duration, parse_duration

MOST = 256
_PATIENCE = 16
"""So many more spares in a row without a gain end the search."""


@dataclass(frozen=True)
class Terms:
    """`rate`: failures per node-day. `limit_s`: of a job, infinite where there is none. `start_s`: from a job's start to its first step;
    `restart_s`: from a loss to the next step, in place; `wait_s`: from a loss to the next start of the job, by a requeue.
    """

    nodes: int
    rate: float
    limit_s: float
    start_s: float
    restart_s: float
    wait_s: float
    wait_billed: float = 1.0


@dataclass(frozen=True)
class Choice:
    """`yields`: useful by billed GPU-hours, of no spares, one, and so on, as far as was looked."""

    spares: int
    terms: Terms
    yields: tuple[float, ...]

    @property
    def losses(self) -> float:
        """Mean number of nodes that a job loses until its limit."""
        whole = self.terms.nodes + self.spares
        return whole * -math.expm1(-self.terms.rate * self.terms.limit_s / DAY_S)

    def __str__(self) -> str:
        t, best, none = self.terms, self.yields[self.spares], self.yields[0]
        until = f"until its limit of {format_duration(t.limit_s)}" if math.isfinite(t.limit_s) else "in all its time"
        why = (
            f"a job on {counted(t.nodes, 'node')} loses {self.losses:.2g} of them {until} ({t.rate:g} a node-day), "
            f"a requeue waits {t.wait_s:g} s, a start in place takes {t.restart_s:g} s"
        )
        gain = f"useful by billed GPU-hours {best:.1%}" + (
            f", without spares {none:.1%}" if self.spares else f", with one {self.yields[1]:.1%}"
        )
        return f"spares = {self.spares}: {why}: {gain}"


def choose_spares(terms: Terms) -> Choice:
    """The best number of spares, the smallest of equals; at most as many as nodes."""
    yields: list[float] = []
    best = 0
    for spares in range(min(max(1, terms.nodes), MOST) + 1):
        yields.append(useful_by_billed(terms, spares))
        if yields[spares] > yields[best]:
            best = spares
        if spares - best >= _PATIENCE:
            break
    return Choice(best, terms, tuple(yields))


def useful_by_billed(terms: Terms, spares: int) -> float:
    """Useful GPU-hours for each billed one, in the long run, with so many spares."""
    n, all_, rate = terms.nodes, terms.nodes + spares, terms.rate / DAY_S
    beyond = tails(all_, -math.expm1(-rate * terms.limit_s), spares + 1)
    times = [beyond[j + 1] / ((all_ - j) * rate) for j in range(spares + 1)]
    in_place = sum(beyond[j] * n / (all_ - j + 1) for j in range(1, spares + 1))
    useful = n * (sum(times) - terms.start_s - in_place * terms.restart_s)
    billed = sum((all_ - j) * one for j, one in enumerate(times)) + terms.wait_billed * n * terms.wait_s
    return max(0.0, useful) / billed


def tails(trials: int, q: float, most: int) -> list[float]:
    """P(N >= j) of a binomial N for j = 0 .. most <= trials.

    >>> [round(p, 6) for p in tails(3, 0.5, 3)], tails(2, 1.0, 2)
    ([1.0, 0.875, 0.5, 0.125], [1.0, 1.0, 1.0])
    """
    if q >= 1:
        return [1.0] * (most + 1)
    logs = [_log_choose(trials, i) + i * math.log(q) + (trials - i) * math.log1p(-q) for i in range(trials + 1)]
    found, beyond = [], math.fsum(map(math.exp, reversed(logs[most:])))
    for j in range(most, -1, -1):
        if j < most:
            beyond += math.exp(logs[j])
        found.append(min(1.0, beyond))
    return found[::-1]


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def terms_of(job: JobConfig, site: SiteConfig) -> Terms:
    """What the job and the site say. Raises nothing: their models have checked it."""
    limit, known = parse_duration(job.slurm.time or site.slurm.time), site.reliability
    return Terms(
        nodes=job.slurm.nodes,
        rate=known.failures_per_node_day,
        limit_s=float(limit) if limit else math.inf,
        start_s=known.restart_s,
        restart_s=known.restart_s,
        wait_s=known.requeue_wait_s,
        wait_billed=known.wait_billed,
    )


def with_spares(job: JobConfig, site: SiteConfig) -> tuple[JobConfig, str]:
    """The job with a number for `slurm.spares = "auto"`, and the line that says why; the job as it is, and no line, else."""
    if job.slurm.spares != "auto":
        return job, ""
    spares, why = _chosen(job, site)
    return job.model_copy(update={"slurm": job.slurm.model_copy(update={"spares": spares})}), why


def _chosen(job: JobConfig, site: SiteConfig) -> tuple[int, str]:
    if not job.recovery.in_place:
        return 0, "spares = 0: recovery.in_place = false uses none"
    if site.launcher != "srun":
        return 0, "spares = 0: without Slurm there are none"
    if job.slurm.continuation == "requeue" and not site.slurm.commands_on_nodes:
        return 0, f"spares = 0: on compute nodes of site {site.name} nobody could ask for a requeue when the batch host is lost"
    choice = choose_spares(terms_of(job, site))
    return choice.spares, str(choice)
