"""The check of all candidates at once: what a node that is dead, hung, slow or unfit costs, in seconds of a fake clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.preflight import asking
from slurmtrain.preflight.answer import NodeAnswer, describe
from slurmtrain.preflight.asking import MOST_STEPS, Check, Wanted
from slurmtrain.preflight.judge import Expected, judge
from slurmtrain.rundir import AttemptDir
from slurmtrain.steps.launcher import StepSpec
from tests.fakes.clock import FakeClock


class Nodes:
    """A launcher whose nodes answer after some seconds. `dead`: refuse at once, and take a common step down; `hung`: never answer."""

    def __init__(self, folder: Path, names: str, **after_s: float) -> None:
        self.attempt = AttemptDir(folder / "0001", 1)
        self.attempt.create()
        self.clock = FakeClock()
        self.names = tuple(names.split())
        self.after_s = {name: after_s.get(name, 1.0) for name in self.names}
        self.dead, self.hung, self.bad = set[str](), set[str](), set[str]()
        self.steps: list[tuple[str, ...]] = []
        self.abandoned: list[tuple[str, ...]] = []

    def spec(self, nodes: tuple[str, ...]) -> StepSpec:
        return StepSpec(("check",), nodes, 1, self.attempt.path / "check-%n.log")

    def start(self, spec: StepSpec) -> _Step:
        self.steps.append(spec.nodes)
        for node in spec.nodes:
            if node not in self.dead | self.hung:
                self.clock.at(self.after_s[node], lambda node=node: self._answer(node))
        return _Step(self, spec.nodes)

    def _answer(self, node: str) -> None:
        answer = describe(node, "word", ["cannot write"] if node in self.bad else [], {})
        self.attempt.node_answer(node).write_bytes(NodeAnswer(**answer.__dict__).to_json())

    def check(self, most: int, least: int = 0, timeout_s: float = 60.0, *, patience_s=20.0, any_answer=False, **more):
        expected = Expected(self.names, "word", describe("", "", (), {}).version)
        folders = {"answers": self.attempt.nodes_dir, "logs": self.attempt.path}
        wanted = Wanted(most, least or most, timeout_s, patience_s, any_answer)
        return Check(self, self.spec, expected, wanted, clock=self.clock, **folders, **more).run()


class _Step:
    pid = 1

    def __init__(self, nodes: Nodes, names: tuple[str, ...]) -> None:
        self._nodes, self._names, self._ended = nodes, names, False
        self._began = nodes.clock.monotonic()

    def poll(self) -> int | None:
        if self._ended:
            return -9
        if self._nodes.dead & set(self._names):
            return 1 if self._nodes.clock.monotonic() - self._began > 0.3 else None
        over = all(self._nodes.attempt.node_answer(name).exists() for name in self._names)
        return 0 if over else None

    def wait(self, timeout_s: float | None = None) -> int | None:
        return self.poll()

    def words(self) -> str:
        return "\n".join(f"srun: error: launch failed on node {n}: Connection refused" for n in sorted(self._nodes.dead & set(self._names)))

    def end(self, grace_s: float) -> None:
        raise AssertionError("a check waits for no step")

    def abandon(self) -> None:
        self._ended = True
        self._nodes.abandoned.append(self._names)


def test_all_are_asked_by_one_step_and_as_soon_as_all_have_answered_it_is_over(tmp_path):
    nodes = Nodes(tmp_path, "n1 n2 n3", n3=2.0)
    result = nodes.check(2)
    assert (nodes.steps, nodes.abandoned, result.faults, result.late) == ([("n1", "n2", "n3")], [], (), {})
    assert result.fit(nodes.names) == ["n1", "n2", "n3"]
    assert 2.0 <= result.seconds < 2.5


def test_a_hung_node_costs_three_seconds_once_there_are_enough(tmp_path):
    """C44."""
    nodes = Nodes(tmp_path, "n1 n2 n3")
    nodes.hung = {"n2"}
    result = nodes.check(2)
    assert result.fit(nodes.names) == ["n1", "n3"]
    assert (result.faults, list(result.late)) == ((), ["n2"])
    assert 4.0 <= result.seconds < 4.6
    assert nodes.abandoned


def test_a_dead_node_takes_the_common_step_down_and_the_others_are_asked_again_one_by_one(tmp_path):
    nodes = Nodes(tmp_path, "n1 n2 n3", n1=5.0, n3=5.0)
    nodes.dead = {"n2"}
    result = nodes.check(2)
    assert nodes.steps == [("n1", "n2", "n3"), ("n1",), ("n2",), ("n3",)]
    assert result.fit(nodes.names) == ["n1", "n3"]
    assert list(result.problems()) == ["n2"], "its own step has ended without an answer: it had its time"
    assert "Connection refused" in result.problems()["n2"]


def test_a_doubted_node_is_asked_apart_from_the_start(tmp_path):
    nodes = Nodes(tmp_path, "n1 n2 n3")
    nodes.dead = {"n2"}
    result = nodes.check(2, doubted={"n2"})
    assert nodes.steps == [("n1", "n3"), ("n2",)]
    assert result.seconds < 4.6


@pytest.mark.parametrize(("least", "seconds"), [(2, 60.0), (1, 21.0)])
def test_with_too_few_the_rest_is_waited_for_and_an_elastic_run_waits_less(tmp_path, least, seconds):
    nodes = Nodes(tmp_path, "n1 n2")
    nodes.hung = {"n2"}
    result = nodes.check(2, least)
    assert seconds <= result.seconds < seconds + 1
    assert result.fit(nodes.names) == ["n1"]
    assert bool(result.faults) == (least == 2), "who had all the time of the check has failed it"


def test_where_an_answer_alone_counts_the_rest_is_waited_for_as_long_as_is_said(tmp_path):
    nodes = Nodes(tmp_path, "n1 n2 n3 n4")
    nodes.hung, nodes.bad = {"n2", "n4"}, {"n1"}
    result = nodes.check(4, 2, patience_s=5.0, any_answer=True)
    assert result.fit(nodes.names) == ["n3"]
    assert 6.0 <= result.seconds < 6.6
    again = Nodes(tmp_path / "again", "n1 n2 n3 n4")
    again.hung, again.bad = {"n2", "n4"}, {"n1"}
    assert again.check(4, 2, patience_s=5.0).seconds >= 60.0, "of those that have answered well there is one"


def test_a_node_that_answers_badly_is_not_among_those_that_are_enough(tmp_path):
    nodes = Nodes(tmp_path, "n1 n2 n3", n3=9.0)
    nodes.bad = {"n1"}
    result = nodes.check(2)
    assert result.fit(nodes.names) == ["n2", "n3"]
    assert 9.0 <= result.seconds < 10


def test_of_a_thousand_dead_nodes_a_few_at_a_time_are_asked_alone(tmp_path):
    nodes = Nodes(tmp_path, " ".join(f"n{i}" for i in range(1000)))
    nodes.dead = set(nodes.names)
    result = nodes.check(1000, timeout_s=5.0)
    assert len(nodes.steps) <= 1 + MOST_STEPS
    assert len(result.problems()) == 1000


def test_a_call_ends_it_and_nothing_is_judged(tmp_path):
    nodes = Nodes(tmp_path, "n1 n2")
    nodes.hung = {"n1", "n2"}
    called: list[bool] = []
    nodes.clock.at(3.0, lambda: called.append(True))
    result = nodes.check(2, interrupted=lambda: bool(called))
    assert (result.interrupted, result.faults) == (True, ())
    assert 3.0 <= result.seconds < 3.5


def test_answers_are_judged_when_there_are_more_of_them_and_not_at_every_look(tmp_path, monkeypatch):
    judged = []

    def counting(answers, expected, **more):
        judged.append(len(answers))
        return judge(answers, expected, **more)

    monkeypatch.setattr(asking, "judge", counting)
    nodes = Nodes(tmp_path, "n1 n2 n3", n2=3.0)
    nodes.hung = {"n3"}
    assert nodes.check(3, timeout_s=30.0).fit(nodes.names) == ["n1", "n2"]
    assert judged == [1, 2, 2], "each time there is another one, and at the end"


def test_the_words_on_a_node_are_not_those_on_its_namesake(tmp_path):
    nodes = Nodes(tmp_path, "n1 n10")
    nodes.dead = {"n1", "n10"}
    problems = nodes.check(2, timeout_s=5.0).problems()
    assert {name: f"on node {name}:" in problems[name] for name in nodes.names} == {"n1": True, "n10": True}
