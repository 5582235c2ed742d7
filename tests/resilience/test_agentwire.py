"""Lines between the supervisor and its agents: what is sent is what comes, and what a site's profile prints between is no report."""

from __future__ import annotations

import pytest

from slurmtrain.resilience.agentwire import NodeReport, Order, RankSight

REPORT = NodeReport("n1", 4, 2, 17.5, (RankSight(3, 4711, "stopped", "wait", 9, 1.5, 2.5, 77, 0.25),), 3.0, {5: "2 stacks"})
ORDER = Order("watch", 5, 2, ("n1",), {"n1": (0, 1), "n2": (2, 3)})


def test_there_and_back():
    assert NodeReport.from_line(REPORT.to_line()) == REPORT
    assert Order.from_line(ORDER.to_line()) == ORDER
    assert REPORT.to_line().count("\n") == 1


def test_a_newer_release_may_say_more():
    line = REPORT.to_line().replace('"node":', '"temperature":[40],"node":').replace('"pid":', '"gpu":1,"pid":')
    assert NodeReport.from_line(line) == REPORT


@pytest.mark.parametrize(
    "line", ["", "Loading module gcc/13", "{}", "[1]", '{"v":1}', '{"v":1,"node":"n1","number":1,"attempt":1,"t":1,"ranks":[1]}', "{"]
)
def test_what_is_no_report_is_refused(line):
    with pytest.raises(ValueError, match="not a report"):
        NodeReport.from_line(line)
    with pytest.raises(ValueError, match="not an order"):
        Order.from_line(line)


def test_foreign_words_are_refused():
    with pytest.raises(ValueError, match="not a report"):
        NodeReport.from_line(REPORT.to_line().replace('"stopped"', '"asleep"'))
    with pytest.raises(ValueError, match="not an order"):
        Order.from_line(ORDER.to_line().replace('"watch"', '"dance"'))


def test_an_order_may_concern_some_nodes_alone():
    assert ORDER.concerns("n1")
    assert not ORDER.concerns("n2")
    assert Order("ping", 1).concerns("n2")
