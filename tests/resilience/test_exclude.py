"""exclude.json: who is to be avoided after which end, for how long, and that what people wrote stays."""

from __future__ import annotations

import json

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.resilience.exclude import Blame, avoid, blamed, merged, read_excluded, read_exclusions, unfit
from slurmtrain.resilience.records import Outcome

PERSON = {"until": None, "reason": "ECC errors", "ticket": 17}


def outcome(kind: str, category: str | None, node: str = "n2") -> Outcome:
    return Outcome(kind, "what was seen", node=node, category=category)


@pytest.mark.parametrize(
    ("given", "lost", "nodes"),
    [
        (outcome("node_failure", "node_failure"), (), ["n2"]),
        (outcome("node_failure", "node_failure"), ("n2", "n3"), ["n2", "n3"]),
        (outcome("node_failure", None), (), ["n2"]),
        (outcome("failed", "silent_corruption"), (), ["n2"]),
        (outcome("failed", "hang"), (), ["n2"]),
        (outcome("failed", "hang", node=""), (), []),
        (outcome("requeue", "hang"), (), ["n2"]),
        (outcome("failed", "rank_crash"), (), []),
        (outcome("failed", "out_of_memory"), (), []),
        (outcome("failed", "numerical"), (), []),
        (outcome("launch", "launch_failure"), (), []),
        (outcome("requeue", "time_limit"), (), []),
        (outcome("finished", "finished", node=""), (), []),
    ],
)
def test_whom_an_end_is_laid_at(given, lost, nodes):
    blames = blamed(given, lost)
    assert [one.node for one in blames] == nodes
    assert all(one.reason and one.evidence == "what was seen" for one in blames)


@pytest.mark.parametrize(("failed", "passed", "nodes"), [(1, 1, 1), (1, 0, 0), (2, 1, 0), (2, 2, 2), (3, 900, 3), (900, 3, 0)])
def test_nodes_that_failed_their_check_are_avoided_where_as_many_others_passed(failed, passed, nodes):
    assert len(unfit({f"n{i}": "read-only" for i in range(failed)}, passed)) == nodes


def test_what_is_over_is_forgotten_and_a_damaged_file_or_entry_is_none(tmp_path):
    path = tmp_path / "exclude.json"
    assert read_excluded(path, 100.0) == {}
    nodes = {
        "n1": {"until": 101, "reason": "ECC"},
        "n2": {"until": 99, "reason": "old"},
        "n3": {"until": None},
        "n4": 7,
        "n5": {"until": "x"},
    }
    path.write_text(json.dumps({"v": 1, "nodes": nodes}))
    assert read_excluded(path, 100.0) == {"n1": "ECC", "n3": ""}
    for damaged in ("{", "[]", '{"v":1}', '{"v":1,"nodes":[]}'):
        path.write_text(damaged)
        assert read_excluded(path, 100.0) == {}


def test_a_node_is_avoided_for_so_many_hours_with_its_evidence(tmp_path):
    path = tmp_path / "exclude.json"
    avoid(path, SystemDisk(), [Blame("n3", "hang", "rank 9 stands still")], attempt=4, now=1000.0, hours=2.0)
    assert json.loads(path.read_bytes()) == {
        "v": 1,
        "nodes": {"n3": {"until": 1000.0 + 7200.0, "reason": "hang", "evidence": "rank 9 stands still", "attempt": 4}},
    }
    assert read_exclusions(path, 8199.0)["n3"].attempt == 4
    assert read_exclusions(path, 8201.0) == {}


def test_what_people_wrote_stays_as_it_is_and_ours_goes_when_it_is_over():
    old = {"until": 900.0, "reason": "hang", "evidence": "", "attempt": 1}
    forgiven = {"until": 900.0, "reason": "was repaired"}
    before = {"n1": PERSON, "n2": old, "n4": forgiven}
    after = merged(before, [Blame("n1", "hang"), Blame("n3", "hang")], attempt=2, now=1000.0, hours=1.0)
    assert after == {"n1": PERSON, "n4": forgiven, "n3": {"until": 4600.0, "reason": "hang", "evidence": "", "attempt": 2}}


def test_a_node_that_a_person_forgave_can_be_blamed_anew():
    after = merged({"n4": {"until": 900.0, "reason": "was repaired"}}, [Blame("n4", "hang")], attempt=2, now=1000.0, hours=1.0)
    assert after["n4"]["reason"] == "hang"


def test_a_file_that_a_person_broke_is_not_overwritten(tmp_path):
    path = tmp_path / "exclude.json"
    path.write_text('{"nodes": {"n1": {"reason": "half a li')
    with pytest.raises(ValueError, match="Unterminated"):
        avoid(path, SystemDisk(), [Blame("n2", "hang")], attempt=1, now=0.0, hours=1.0)
    assert path.read_text().endswith("half a li")
