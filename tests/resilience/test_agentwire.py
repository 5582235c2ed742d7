"""Lines between the supervisor and its agents: what is sent is what comes, and what a site's profile prints between is no report."""

from __future__ import annotations

import pytest

from slurmtrain.resilience.agentwire import LINE_LIMIT, Joiner, NodeReport, Order, RankSight, parts_of

REPORT = NodeReport("n1", 4, 2, 17.5, (RankSight(3, 4711, "stopped", "wait", 9, 1.5, 2.5, 77, 0.25),), 3.0, {5: "2 stacks"})
ORDER = Order("watch", 5, 2, ("n1",), {"n1": (0, 1), "n2": (2, 3)})


def test_there_and_back():
    assert NodeReport.from_line(REPORT.to_line()) == REPORT
    assert Order.from_line(ORDER.to_line()) == ORDER
    assert REPORT.to_line().count("\n") == 1


def test_a_newer_release_may_say_more():
    line = REPORT.to_line().replace('"node":', '"temperature":[40],"node":').replace("77,0.25]", '77,0.25,"new"]')
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


def big(node: str, ranks: int) -> NodeReport:
    sights = (RankSight(rank, 100000 + rank, "runs", "step", 123456, 0.123, 9.5, 987654, 1.25) for rank in range(ranks))
    return NodeReport(node, 7, 2, 1234.567, tuple(sights))


def test_a_report_of_eight_ranks_is_one_line_that_slurm_does_not_cut():
    assert len(parts_of(big("node-with-a-long-name-0123", 8))) == 1
    assert len(parts_of(big("node-with-a-long-name-0123", 8))[0]) <= 600


def test_longer_reports_go_in_parts_that_may_come_mixed_with_those_of_others():
    reports = [big("n1", 40), big("n2", 64)]
    lines = [parts_of(one) for one in reports]
    assert all(len(line) <= LINE_LIMIT and line.count("\n") == 1 for some in lines for line in some)
    joiner = Joiner()
    mixed = [line for i in range(8) for some in lines for line in some[i : i + 1]]
    whole = [said for line in mixed if (said := joiner.take(line)) is not None]
    assert sorted(whole) == sorted(one.to_line() for one in reports)


def test_of_a_report_that_lost_a_part_nothing_is_left_when_the_next_comes():
    joiner = Joiner()
    lines = parts_of(big("n1", 40))
    assert [joiner.take(line) for line in lines[1:]] == [None] * (len(lines) - 1)
    later = NodeReport("n1", 8, 2, 1.0, big("n1", 40).ranks)
    assert [joiner.take(line) for line in parts_of(later)][-1] == later.to_line()
    assert joiner.take("srun: a line of its own\n") == "srun: a line of its own\n"
