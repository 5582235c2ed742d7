"""Daly's interval: against the minimum of his model found by search, Young's limit, published figures; rates against sums by hand."""

from __future__ import annotations

import math

import pytest

from slurmtrain.planner.interval import DAY_S, PRIOR_FAILURES, Seen, advise, daly, failure_rate, mtbf_s, useful_share, young


def expected_time(tau: float, delta: float, restart: float, mtbf: float) -> float:
    """Of one second of work (Daly 2006, the complete model), written down again."""
    return mtbf * math.exp(restart / mtbf) * (math.exp((tau + delta) / mtbf) - 1) / tau


def least(cost, low: float, high: float) -> float:
    """Where a function of one valley is least: golden section, to 1e-9 of the span."""
    ratio = (math.sqrt(5) - 1) / 2
    while high - low > 1e-9 * (low + high):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, b) if cost(a) < cost(b) else (a, high)
    return (low + high) / 2


@pytest.mark.parametrize("mtbf", [600.0, 3600.0, 86_400.0, 1e7])
@pytest.mark.parametrize("share", [1e-5, 1e-3, 0.01, 0.1, 0.5, 1.0])
def test_it_is_where_the_model_is_least(mtbf, share):
    """His series in sqrt(delta / 2M): the interval within 2 %, what it costs within 2 in 10,000, up to delta = M."""
    delta = share * mtbf
    best = least(lambda tau: expected_time(tau, delta, 60.0, mtbf), 1e-3, 10 * mtbf)
    assert daly(delta, mtbf) == pytest.approx(best, rel=0.02)
    assert expected_time(daly(delta, mtbf), delta, 60.0, mtbf) == pytest.approx(expected_time(best, delta, 60.0, mtbf), rel=2e-4)


def test_the_restart_does_not_move_it():
    found = [least(lambda tau, restart=restart: expected_time(tau, 30.0, restart, 7200.0), 1.0, 72_000.0) for restart in (0.0, 600.0)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_youngs_is_its_limit():
    assert daly(1e-3, 1e6) == pytest.approx(young(1e-3, 1e6), rel=1e-4)
    assert young(60.0, 3600.0) == pytest.approx(math.sqrt(432_000.0))
    assert daly(60.0, 3600.0) < young(60.0, 3600.0)


def test_saves_that_take_longer_than_failures_are_apart():
    """Beyond the range of the series: M, as he says."""
    assert daly(20.0, 10.0) == daly(200.0, 10.0) == 10.0
    assert daly(19.9, 10.0) == pytest.approx(10.0, rel=0.15)


def test_the_share_that_is_useful():
    """1 by the model's expected time; next to nothing where it overflows; all without failures and saves."""
    assert useful_share(600.0, 30.0, 300.0, 7200.0) == pytest.approx(1 / expected_time(600.0, 30.0, 300.0, 7200.0))
    assert useful_share(600.0, 30.0, 300.0, 0.5) == 0.0
    assert useful_share(3600.0, 0.0, 0.0, 1e12) == pytest.approx(1.0)


def test_it_agrees_with_metas_first_order_figure_where_failures_are_rare():
    """Kokolis et al.: (1 - N r (u0 + dt / 2)) / (1 + w / dt); 256 nodes at 6.5e-3, dt 60 min, w 5 min, u0 5 min: 0.8857 (derived)."""
    mtbf = mtbf_s(256, 6.5e-3)
    assert useful_share(3600.0, 300.0, 300.0, mtbf) == pytest.approx(0.8857, abs=0.006)


def test_the_mean_time_between_failures_of_many_nodes():
    """Meta's projections at 6.5 in 1,000 node-days: 16,384 GPUs on 2,048 nodes 1.8 hours, 131,072 on 16,384 0.23 hours."""
    assert round(mtbf_s(2048, 6.5e-3) / 3600, 1) == 1.8
    assert round(mtbf_s(16_384, 6.5e-3) / 3600, 2) == 0.23


def test_what_a_run_has_seen_outweighs_the_site_in_time():
    """A Gamma of shape 2: by hand (2 + 3) / (2 / 0.0065 + 100); then the run's own rate whatever the site says."""
    assert PRIOR_FAILURES == 2
    assert failure_rate(0.0065, Seen()) == pytest.approx(0.0065)
    assert failure_rate(0.0065, Seen(3, 100.0)) == pytest.approx(5 / (307.6923077 + 100))
    assert failure_rate(0.0065, Seen(0, 10_000.0)) < 0.0065 / 30
    assert failure_rate(0.0065, Seen(5000, 10_000.0)) == pytest.approx(0.5, rel=0.04)


def test_the_posterior_is_bayes_rule():
    """The mean of prior x Poisson likelihood over a grid of rates, by plain summation."""
    prior, seen = 0.02, Seen(4, 60.0)
    rates = [(i + 0.5) * 1e-5 for i in range(60_000)]
    weights = [r * math.exp(-2 * r / prior) * (r * seen.node_days) ** seen.failures * math.exp(-r * seen.node_days) for r in rates]
    mean = math.fsum(r * w for r, w in zip(rates, weights, strict=True)) / math.fsum(weights)
    assert failure_rate(prior, seen) == pytest.approx(mean, rel=1e-4)


def test_all_inputs_are_told():
    advice = advise(stall_s=4.0, restart_s=90.0, nodes=8, site_rate=0.0065, seen=Seen(1, 12.0))
    rate = 3 / (2 / 0.0065 + 12)
    assert advice.seconds == daly(4.0, DAY_S / (8 * rate))
    told = advice.to_fields()
    assert told["failures"] == 1
    assert told["mtbf_s"] == pytest.approx(DAY_S / (8 * rate), rel=1e-5)
    assert set(told) == {
        *("seconds", "stall_s", "mtbf_s", "nodes", "failures_per_node_day", "site_failures_per_node_day"),
        *("failures", "node_days", "restart_s", "useful"),
    }
