"""MPI's world over the nodes: one bad node is found by halves, a wrong size is nobody's fault, and a hang costs its time-out a round."""

from __future__ import annotations

import json
from math import ceil, log2
from pathlib import Path

import pytest

from slurmtrain.preflight.mpi_world import MpiWorld
from slurmtrain.steps.launcher import StepSpec
from tests.fakes.clock import FakeClock


class Worlds:
    """`dead`: nodes with which no world forms; `hung`: it never ends; `apart`: pairs that are as bad; `size`: what MPI says."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.clock = folder, FakeClock()
        self.nodes = [f"n{i}" for i in range(count)]
        self.dead, self.hung, self.apart = set[str](), set[str](), set[frozenset[str]]()
        self.size = 0
        self.asked: list[tuple[float, tuple[str, ...]]] = []
        self.abandoned = 0

    def spec(self, nodes: tuple[str, ...], folder: Path) -> StepSpec:
        return StepSpec(("mpi_size", str(folder)), nodes, 1, folder / "world-%n.log", mpi="pmi2")

    def start(self, spec: StepSpec) -> _Step:
        self.asked.append((self.clock.monotonic(), spec.nodes))
        bad = self.dead & set(spec.nodes) or any(pair <= set(spec.nodes) for pair in self.apart)
        hung = bool(self.hung & set(spec.nodes))
        if bad:
            (spec.output.parent / "world-000.log").write_text(f"{sorted(self.dead & set(spec.nodes))}: no MPI library can be loaded\n")
        elif not hung:
            for node in spec.nodes:
                (spec.output.parent / f"{node}.json").write_text(json.dumps({"size": self.size or len(spec.nodes)}))
        return _Step(self, None if hung else 1 if bad else 0)

    def check(self) -> list[tuple[str, str]]:
        world = MpiWorld(self, self.spec, lambda n, g: self.folder / f"world-{n}-{g}", self.clock, hint="see srun --mpi=list", timeout_s=6)
        found = world.check(self.nodes)
        assert all((one.check, one.grade, one.remedy) == ("mpi-world", "fail", "see srun --mpi=list") for one in found)
        return [(one.node, one.said) for one in found]

    @property
    def rounds(self) -> int:
        return len({t for t, _ in self.asked})


class _Step:
    pid = 1

    def __init__(self, worlds: Worlds, code: int | None) -> None:
        self._worlds, self._code = worlds, code
        self._over_t = worlds.clock.monotonic() + 1.0

    def poll(self) -> int | None:
        return self._code if self._worlds.clock.monotonic() >= self._over_t else None

    def wait(self, timeout_s: float | None = None) -> int | None:
        return self.poll()

    def words(self) -> str:
        return ""

    def abandon(self) -> None:
        self._worlds.abandoned += self._code is None


def test_nodes_that_form_one_world_are_asked_once(tmp_path):
    worlds = Worlds(tmp_path, 8)
    assert worlds.check() == []
    assert [nodes for _, nodes in worlds.asked] == [tuple(worlds.nodes)]
    assert worlds.clock.monotonic() - 1000 < 3


@pytest.mark.parametrize("count", [1, 2, 3, 8, 13])
@pytest.mark.parametrize("place", [0, -1])
def test_a_bad_node_is_found_in_so_many_rounds_and_the_rest_form_a_world(tmp_path, count, place):
    worlds = Worlds(tmp_path, count)
    bad = worlds.nodes[place]
    worlds.dead = {bad}
    found = worlds.check()
    assert [node for node, _ in found] == [bad]
    assert "no MPI library can be loaded" in found[0][1]
    assert worlds.rounds <= ceil(log2(count)) + 2, "the last is the world of the rest"


def test_two_bad_nodes(tmp_path):
    worlds = Worlds(tmp_path, 8)
    worlds.dead = {"n2", "n7"}
    assert [node for node, _ in worlds.check()] == ["n2", "n7"]


def test_a_hang_costs_a_time_out_a_round(tmp_path):
    worlds = Worlds(tmp_path, 4)
    worlds.hung = {"n3"}
    assert worlds.check() == [("n3", "MPI forms no world of 1: no answer in 6 s")]
    assert worlds.abandoned == 3
    assert 18 <= worlds.clock.monotonic() - 1000 < 20


def test_a_wrong_size_is_no_nodes_fault_and_nobody_is_searched_for(tmp_path):
    worlds = Worlds(tmp_path, 4)
    worlds.size = 1
    found = worlds.check()
    assert [node for node, _ in found] == worlds.nodes
    assert found[0][1] == "MPI sees a world of 1, and 4 processes were started"
    assert worlds.rounds == 1


def test_nodes_that_do_not_form_a_world_although_each_does_alone_are_all_named(tmp_path):
    worlds = Worlds(tmp_path, 4)
    worlds.apart = {frozenset({"n0", "n3"})}
    found = worlds.check()
    assert [node for node, _ in found] == worlds.nodes
    assert "although smaller worlds of these nodes form" in found[0][1]


def test_no_nodes_are_no_question(tmp_path):
    worlds = Worlds(tmp_path, 0)
    assert worlds.check() == []
    assert worlds.asked == []
