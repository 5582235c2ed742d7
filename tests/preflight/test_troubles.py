"""Every kind of trouble that a check of health finds: facts in, one line with a remedy out. A row each; a good node has none."""

from __future__ import annotations

import pytest

from slurmtrain.config.site import SiteConfig
from slurmtrain.preflight.answer import NodeAnswer
from slurmtrain.preflight.diagnosis import diagnose
from slurmtrain.preflight.registry import all_checks, all_sources
from slurmtrain.preflight.request import Request
from tests.preflight.row import Row
from tests.preflight.troubles import FACTS, ROWS, SITE


def answers_of(row: Row) -> dict[str, NodeAnswer]:
    """n1 and n3 are good, n2 has the row's facts."""
    good = _changed(FACTS, row.all_nodes)
    facts = {"n1": good, "n2": _changed(good, row.facts), "n3": good}
    blank = NodeAnswer("", True, (), "3.11.7", "0.1.0", 1, 1, t=1000.0, seen=1001.0)
    return {node: NodeAnswer(**{**blank.__dict__, "node": node, "facts": known}) for node, known in facts.items()}


def _changed(facts, changes):
    return {**facts, **{source: {**facts[source], **some} for source, some in changes.items()}}


def request_of(row: Row) -> Request:
    site = SiteConfig.model_validate({**SITE, **row.site})
    return Request(1000.0, "/answers", "word", "/nonce", ("/runs",), site, **{"gpus_per_node": 8, "health": True, **row.request})


def test_good_nodes_have_no_trouble():
    good = Row("", "", {}, "")
    assert diagnose(answers_of(good), request_of(good)) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.check}: {row.name}")
def test_each_kind_of_trouble_is_one_line_with_a_remedy(row):
    found = diagnose(answers_of(row), request_of(row))
    assert [(one.node, one.check, one.grade) for one in found] == [("n2", row.check, row.grade)]
    assert row.words in str(found[0])
    assert found[0].remedy
    assert "\n" not in str(found[0])


def test_every_check_has_a_row_and_a_source_and_a_name_of_its_own():
    names = [check.name for check in all_checks()]
    assert len(set(names)) == len(names)
    assert {row.check for row in ROWS} == set(names)
    assert {check.source for check in all_checks()} == {source.name for source in all_sources()}
