"""A table of what is seen, run after run, and what is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from slurmtrain.resilience.examination import Examination, Sight, Suspect, agreed, differed, given_up, placed, read_examination

NODES = ("a", "b", "c", "d")


def sight(*ranks, nodes=NODES, per_node=1, step=7, equal_at=5, attempt=1, spares=()):
    suspects = tuple(Suspect(rank, nodes[rank // per_node], rank % per_node) for rank in ranks)
    return Sight(attempt, step, equal_at, suspects, len(ranks) == 1, tuple(nodes), tuple(spares))


EQUAL = None


@dataclass
class Row:
    what: str
    seen: list
    """Ranks that differ, run after run; EQUAL: none up to the last step. Each run is placed as the one before asks."""
    stages: list[str]
    finding: str = ""
    node: str = ""
    nodes: tuple = NODES
    spares: tuple = ()
    per_node: int = 1
    words: str = ""
    moved_to: dict = field(default_factory=dict)


TABLE = [
    Row("once", [(2,), EQUAL], ["repeat", "closed"], "transient"),
    Row("with the node", [(2,), (2,), (0,)], ["repeat", "exchange", "closed"], "persistent", "c"),
    Row("with the rank", [(2,), (2,), (2,)], ["repeat", "exchange", "closed"], "software"),
    Row("not when the node is elsewhere", [(2,), (2,), EQUAL], ["repeat", "exchange", "closed"], "persistent", "c"),
    Row("a spare takes its place", [(2,), (2,), EQUAL], ["repeat", "exchange", "closed"], "persistent", "c", spares=("e",)),
    Row("with the rank, on a spare", [(2,), (2,), (2,)], ["repeat", "exchange", "closed"], "software", spares=("e",)),
    Row("another rank the second time", [(2,), (1,)], ["repeat", "closed"], "undecided", words="no rank and no node"),
    Row("a third one", [(2,), (2,), (1,)], ["repeat", "exchange", "closed"], "undecided"),
    Row("one node", [(2,), (2,)], ["repeat", "closed"], "undecided", nodes=("a",), per_node=4, words="the world has one node"),
    Row("one node and a spare", [(2,), (2,), (2,)], ["repeat", "exchange", "closed"], "software", nodes=("a",), spares=("e",), per_node=4),
    Row("two replicas of two nodes", [(0, 1), (0, 1), (0, 1)], ["repeat", "exchange", "closed"], "undecided", nodes=("a", "b")),
    Row("two replicas, the moved one", [(0, 2), (0, 2), (1, 3)], ["repeat", "exchange", "closed"], "persistent", "c"),
    Row("two replicas, not the moved one", [(0, 2), (0, 2), (0, 2)], ["repeat", "exchange", "closed"], "undecided", words="not c"),
    Row("two ranks of one node", [(0, 1), (0, 1), (2, 3)], ["repeat", "exchange", "closed"], "persistent", "a", ("a", "b"), per_node=2),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.what)
def test_run_after_run(row):
    exam, nodes, spares = None, row.nodes, row.spares
    for number, (ranks, stage) in enumerate(zip(row.seen, row.stages, strict=True), 1):
        nodes, spares, _ = placed(exam, nodes, spares)
        if row.what == "two replicas, the moved one" and number == 3:
            assert nodes == ("a", "c", "b", "d")
        if ranks is EQUAL:
            exam = agreed(exam)
        else:
            exam = differed(exam, sight(*ranks, nodes=nodes, per_node=row.per_node, attempt=number, spares=spares))
        assert exam.stage == stage
    assert (exam.finding, exam.node) == (row.finding, row.node)
    assert row.words in exam.why
    assert (exam.from_step, exam.to_step) == (5, 7)


def test_a_new_one_begins_when_the_last_is_closed():
    exam = agreed(differed(None, sight(2)))
    again = differed(exam, sight(1, step=20, equal_at=16, attempt=4))
    assert (again.stage, again.from_step, again.to_step, again.attempts, again.finding) == ("repeat", 16, 20, (4,), "")


def test_the_same_places_again():
    exam = differed(None, sight(2))
    assert placed(exam, ["d", "b", "a", "c"], [])[0] == NODES
    assert placed(exam, ["e", "b", "a", "c"], ["d"])[:2] == (NODES, ("e",))
    nodes, spares, words = placed(exam, ["e", "b", "a", "c"], ["f"])
    assert (nodes, spares) == (("e", "b", "a", "c"), ("f",))
    assert "not there" in words
    assert placed(given_up(exam, "no"), ["d", "b"], ["a"]) == (("d", "b"), ("a",), "")


def test_a_node_that_could_not_be_moved():
    exam = differed(differed(None, sight(2)), sight(2, attempt=2))
    last = differed(exam, sight(2, attempt=3))  # on the same nodes
    assert (last.finding, last.why) == ("undecided", "rank 2 on c, GPU 0; c could not be moved")


def test_the_second_run_on_other_nodes():
    """The first places were not to be had: what is moved, and who is asked after, are of the second run."""
    exam = differed(differed(None, sight(2)), sight(2, nodes=("a", "b", "e", "d"), attempt=2))
    assert (exam.stage, exam.moved) == ("exchange", "e")
    nodes, _, _ = placed(exam, ["a", "b", "d", "e"], [])
    assert nodes == ("e", "b", "a", "d")
    assert differed(exam, sight(2, nodes=nodes, attempt=3)).finding == "software"
    assert differed(exam, sight(0, nodes=nodes, attempt=3)).node == "e"


def test_there_and_back(tmp_path):
    path = tmp_path / "examination.json"
    assert read_examination(path) is None
    exam = differed(differed(None, sight(0, 2)), sight(0, 2, attempt=2))
    path.write_bytes(exam.to_json())
    assert read_examination(path) == exam
    for text in ("", "[]", '{"v":1}', '{"stage":"repeat","suspects":[1]}'):
        path.write_text(text)
        assert read_examination(path) is None


def test_words():
    assert str(Suspect(3, "n2", 1, "GPU-8a2f")) == "rank 3 on n2, GPU 1 (GPU-8a2f)"
    assert isinstance(differed(None, sight(2)), Examination)
