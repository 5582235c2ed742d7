"""Spares: the closed form against lives of jobs drawn at random, and limits that follow from what the words mean."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SiteConfig
from slurmtrain.planner.spares import Terms, choose_spares, tails, useful_by_billed, with_spares

DAY = 86_400.0
BIG = Terms(nodes=64, rate=0.05, limit_s=DAY, start_s=300.0, restart_s=200.0, wait_s=1800.0)


def lives(terms: Terms, spares: int, count: int, seed: int) -> tuple[float, float]:
    """(useful by billed, its standard error) of jobs played one by one: each node has its own time of death; who works is by turn."""
    draw = random.Random(seed)
    useful, billed = [], []
    for _ in range(count):
        deaths = sorted((draw.expovariate(terms.rate / DAY), number) for number in range(terms.nodes + spares))
        working, idle = set(range(terms.nodes)), set(range(terms.nodes, terms.nodes + spares))
        now, node_s, lost_s = 0.0, 0.0, terms.start_s
        for at, number in deaths:
            if at >= terms.limit_s:
                break
            node_s += (at - now) * (len(working) + len(idle))
            now = at
            if number in idle:
                idle.remove(number)
            elif idle:
                working.remove(number)
                working.add(idle.pop())
                lost_s += terms.restart_s
            else:
                break
        else:
            at = terms.limit_s
        if at >= terms.limit_s:
            node_s += (terms.limit_s - now) * (len(working) + len(idle))
            now = terms.limit_s
        useful.append(terms.nodes * (now - lost_s))
        billed.append(node_s + terms.wait_billed * terms.nodes * terms.wait_s)
    ratio = sum(useful) / sum(billed)
    spread = math.sqrt(sum((u - ratio * b) ** 2 for u, b in zip(useful, billed, strict=True))) / sum(billed)
    return ratio, spread


@pytest.mark.parametrize("spares", [0, 1, 2, 5])
@pytest.mark.parametrize(
    "terms",
    [BIG, replace(BIG, nodes=4, rate=1.0), replace(BIG, nodes=16, limit_s=6 * 3600.0), replace(BIG, wait_billed=0.25)],
    ids=["64 nodes", "4 bad nodes", "6 hours", "cheap waits"],
)
def test_the_closed_form_is_the_mean_of_many_lives(terms, spares):
    ratio, spread = lives(terms, spares, 1500, seed=17 + spares)
    assert useful_by_billed(terms, spares) == pytest.approx(ratio, abs=4 * spread)
    assert spread < 0.01


def test_the_best_of_many_lives():
    """The choice is within noise of the best by simulation, and better than its neighbours where those are worse by more than noise."""
    choice = choose_spares(BIG)
    played = {k: lives(BIG, k, 1500, seed=5) for k in (0, 2, choice.spares, 8)}
    best = max(ratio for ratio, _ in played.values())
    ratio, spread = played[choice.spares]
    assert 2 <= choice.spares <= 8
    assert ratio >= best - 4 * spread
    assert played[0][0] < best - 4 * spread


def test_none_is_a_normal_answer():
    assert choose_spares(replace(BIG, nodes=2, rate=0.0065)).spares == 0
    assert choose_spares(replace(BIG, wait_s=0.0, restart_s=300.0)).spares == 0
    assert choose_spares(replace(BIG, wait_billed=0.0)).spares <= 1


def test_longer_waits_worse_nodes_and_larger_worlds_want_more():
    def chosen(**change):
        return choose_spares(replace(BIG, **change)).spares

    assert chosen(wait_s=600.0) <= chosen(wait_s=1800.0) <= chosen(wait_s=7200.0)
    assert chosen(rate=0.005) < chosen(rate=0.05) < chosen(rate=0.5)
    assert chosen(nodes=8) < chosen(nodes=64) < chosen(nodes=512)
    assert chosen(restart_s=100.0) >= chosen(restart_s=1500.0)


def test_without_a_limit_and_without_failures():
    """All k + 1 losses happen: with one node and no spare a life is 1 / rate long; with failures that never come nothing is lost."""
    alone = Terms(nodes=1, rate=1.0, limit_s=math.inf, start_s=0.0, restart_s=0.0, wait_s=0.0)
    assert useful_by_billed(alone, 0) == pytest.approx(1.0)
    assert useful_by_billed(replace(alone, wait_s=DAY), 0) == pytest.approx(0.5)
    # one node and a spare: half a day with both, one day with one
    assert useful_by_billed(alone, 1) == pytest.approx(1.5 / 2.0)
    assert useful_by_billed(replace(BIG, rate=1e-12, start_s=0.0, wait_s=0.0), 3) == pytest.approx(64 / 67)


def test_tails_are_sums_of_the_binomial():
    for trials, q in ((5, 0.3), (40, 0.01), (300, 0.2)):
        exact = [sum(math.comb(trials, i) * q**i * (1 - q) ** (trials - i) for i in range(j, trials + 1)) for j in range(6)]
        assert tails(trials, q, 5) == pytest.approx(exact, rel=1e-9)


def test_a_world_of_two_thousand_nodes_is_quick():
    """Llama 3's run at its own rate: about 3.8 in 1,000 node-days, some 8 losses a day."""
    choice = choose_spares(replace(BIG, nodes=2048, rate=0.00379))
    assert choice.losses == pytest.approx(7.8, abs=0.1)
    assert 8 <= choice.spares <= 20


def job(spares="auto", nodes=64, **sections) -> JobConfig:
    model = {"layers": 2, "hidden": 16, "heads": 2, "kv_heads": 2, "ffn": 32, "vocab": 64}
    known = {
        "training": {"steps": 1, "sequence_length": 8, "global_batch": 512},
        "data": {"path": "/d"},
        "run": {"name": "r"},
        "model": model,
    }
    return JobConfig.model_validate({**known, "slurm": {"nodes": nodes, "spares": spares, "time": "24:00:00"}, **sections})


def site(rate=0.05, wait=1800.0, **sections) -> SiteConfig:
    known = {"failures_per_node_day": rate, "requeue_wait_s": wait, "restart_s": 200.0}
    return SiteConfig.model_validate({"name": "s", "node": {"gpus": 8}, "reliability": known, **sections})


def test_auto_becomes_a_number_with_its_reason():
    made, why = with_spares(job(), site())
    best = choose_spares(replace(BIG, start_s=200.0))
    assert made.slurm.spares == best.spares > 0
    assert made == job(best.spares)
    assert why.startswith(
        f"spares = {best.spares}: a job on 64 nodes loses {best.losses:.2g} of them until its limit of 1-00:00:00 (0.05 a"
    )
    assert f"useful by billed GPU-hours {best.yields[best.spares]:.1%}, without spares {best.yields[0]:.1%}" in why


def test_a_number_is_left_alone():
    assert with_spares(job(3), site()) == (job(3), "")


@pytest.mark.parametrize(
    ("a_job", "a_site", "word"),
    [
        (job(recovery={"in_place": False}), site(), "in_place"),
        (job(), site(launcher="mpiexec"), "without Slurm"),
        (job(), site(slurm={"commands_on_nodes": False}), "batch host"),
    ],
)
def test_where_spares_are_of_no_use(a_job, a_site, word):
    made, why = with_spares(a_job, a_site)
    assert made.slurm.spares == 0
    assert word in why
