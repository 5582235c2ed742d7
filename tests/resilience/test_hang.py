"""Whether a world hangs and who is to blame: table rows of what agents tell, each with a limit of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmtrain.config.recovery import HangConfig
from slurmtrain.resilience.agents import Heard
from slurmtrain.resilience.agentwire import NodeReport, RankSight
from slurmtrain.resilience.hang import Scene, find_hang, silent_nodes

NOW = 10_000.0
LIMITS = HangConfig(first_step_s=1000, step_s=100, step_factor=10, load_s=500, save_s=600, eval_s=700, data_s=400, storage_s=800)
CALM = RankSight(0, 100, "runs", "step", 7, 1.0, 1.0, 50)


def sight(rank: int, phase: str = "step", age: float = 1.0, **changes: object) -> RankSight:
    return replace(CALM, rank=rank, pid=100 + rank, phase=phase, age_s=age, phase_s=age, **changes)


def scene(*ranks: RankSight, per_node: int = 2, ago=None, stall=None, **changes) -> Scene:
    """Ranks by node; `ago`: how old a node's report is; `stall`: what it says of the shared folder."""
    count = max((one.rank for one in ranks), default=0) // per_node + 1
    nodes = tuple(f"n{i + 1}" for i in range(count))
    heard = {}
    for index, node in enumerate(nodes):
        mine = tuple(one for one in ranks if one.rank // per_node == index)
        report = NodeReport(node, 1, 3, 0.0, mine, (stall or {}).get(node, 0.0))
        heard[node] = Heard(report, NOW - (ago or {}).get(node, 0.0))
    return Scene(**{"now": NOW, "attempt": 3, "nodes": nodes, "tasks_per_node": per_node, "heard": heard, "limits": LIMITS,
                    "start_s": 300.0, "first_done": True, **changes})  # fmt: skip


def world(phase: str, age: float, **changes: object) -> list[RankSight]:
    return [sight(rank, phase, age, **changes) for rank in range(4)]


@pytest.mark.parametrize(
    ("phase", "limit"),
    [("init", 300), ("load", 500), ("step", 100), ("wait", 100), ("save", 600), ("eval", 700), ("data", 400)],
)
def test_each_phase_has_its_own_limit(phase, limit):
    assert find_hang(scene(*world(phase, limit - 0.1))) is None
    found = find_hang(scene(*world(phase, limit)))
    assert (found.rank, found.node, found.phase, found.seconds) == (None, "", phase, limit)
    assert "no rank stands out" in found.words
    assert f"limit {limit} s" in found.words


@pytest.mark.parametrize("phase", ["step", "wait"])
def test_until_the_first_step_is_done_there_is_an_allowance(phase):
    assert find_hang(scene(*world(phase, 999), first_done=False)) is None
    assert find_hang(scene(*world(phase, 1000), first_done=False)) is not None
    assert find_hang(scene(*world("init", 300), first_done=False)) is not None, "the start has a limit of its own"


@pytest.mark.parametrize(("median", "limit"), [(0.0, 100), (9.9, 100), (10.1, 101), (60.0, 600)])
def test_long_steps_are_given_more(median, limit):
    assert find_hang(scene(*world("step", limit - 0.1), median_s=median)) is None
    assert find_hang(scene(*world("step", limit), median_s=median)) is not None


@pytest.mark.parametrize("key", ["first_step_s", "step_s", "load_s", "save_s", "eval_s", "data_s"])
def test_zero_is_never(key):
    phase = key.removesuffix("_s").removeprefix("first_")
    limits = LIMITS.model_copy(update={key: 0.0})
    assert find_hang(scene(*world(phase, 1e6), limits=limits, first_done=key != "first_step_s")) is None


def test_a_world_that_leaves_is_left_alone():
    assert find_hang(scene(*world("end", 1e6))) is None
    assert find_hang(scene(*world("end", 1e6)[:3], sight(3, "step", 99))) is None


@pytest.mark.parametrize(
    "busy",
    [sight(2, "save", 599), sight(2, "eval", 699), sight(2, "data", 399), sight(2, "load", 499), sight(2, "step", 99)],
    ids=lambda one: one.phase,
)
def test_who_is_within_its_limit_excuses_those_that_wait_for_it(busy):
    others = [sight(rank, "wait", 3000) for rank in (0, 1, 3)]
    assert find_hang(scene(*others, busy)) is None
    late = find_hang(scene(*others, replace(busy, age_s=busy.age_s + 1)))
    assert (late.rank, late.node, late.phase) == (2, "n2", busy.phase)


def test_what_passed_since_the_report_counts():
    assert find_hang(scene(*world("step", 95), ago={"n1": 4, "n2": 4})) is None
    assert find_hang(scene(*world("step", 95), ago={"n1": 5, "n2": 5})) is not None


def test_reports_of_another_attempt_and_no_reports_say_nothing():
    assert find_hang(scene(*world("step", 500), attempt=4)) is None
    assert find_hang(replace(scene(*world("step", 500)), heard={})) is None
    assert find_hang(scene(*world("step", 500), ago={"n1": 60, "n2": 60})) is None, "nobody speaks: the supervisor itself was away"


# --- the suspect


@pytest.mark.parametrize(
    ("changes", "rank", "node", "words"),
    [
        ({2: {"state": "stopped"}}, 2, "n2", "rank 2 on n2 hangs: its process is stopped"),
        ({2: {"state": "stopped"}, 3: {"state": "stopped"}}, 2, "n2", "rank 2 on n2 (and 1 more rank) hangs: its process is stopped"),
        ({1: {"state": "stopped"}, 3: {"state": "stopped"}}, 1, "", "rank 1 on n1 (and 1 more rank) hangs"),
        ({1: {"state": "gone"}, 2: {"step": 6}}, 1, "n1", "its process is gone"),
        ({3: {"step": 6}, 1: {"entered": 40}}, 3, "n2", "it is behind the others"),
        ({3: {"entered": 49}, 0: {"phase": "wait"}}, 3, "n2", "fewer collectives than its peers"),
        ({0: {"entered": 49}, 1: {"entered": 44}, 2: {"entered": 49}}, 1, "n1", "fewer collectives"),
        ({0: {"phase": "wait"}, 1: {"phase": "wait"}, 2: {"phase": "wait"}}, 3, "n2", "the others wait for it"),
        ({0: {"phase": "wait"}, 1: {"phase": "wait"}}, 2, "n2", "(and 1 more rank) hangs: the others wait for it"),
        ({0: {"phase": "wait"}, 2: {"phase": "wait"}}, 1, "", "the others wait for it"),
    ],
)  # fmt: skip
def test_the_suspect(changes, rank, node, words):
    ranks = [replace(sight(r, age=120), **changes.get(r, {})) for r in range(4)]
    found = find_hang(scene(*ranks))
    assert (found.rank, found.node) == (rank, node), found.words
    assert words in found.words


def test_a_stopped_process_needs_nobody_elses_hang_and_no_phase_excuses_it():
    """All ranks of a node stopped (C30), in a save that may take 600 s, while the folder stands still."""
    stopped = [sight(rank, "save", 100, state="stopped") for rank in (2, 3)]
    found = find_hang(scene(sight(0, "save", 100), sight(1, "save", 100), *stopped, stall={"n2": 100}, first_done=False))
    assert (found.rank, found.node, found.seconds) == (2, "n2", 100)
    younger = [replace(one, age_s=99.0) for one in stopped]
    assert find_hang(scene(sight(0, "save", 100), sight(1, "save", 100), *younger)) is None


def test_a_node_that_does_not_answer_is_the_suspect_once_its_peers_stand_still():
    ranks = (*world("wait", 5)[:2], sight(2, "save", 1), sight(3, "save", 1))
    silent = {"n2": 130.0}
    assert find_hang(scene(*ranks, ago=silent)) is None, "agents end, too, while ranks go on"
    stuck = (*world("wait", 100)[:2], *ranks[2:])
    found = find_hang(scene(*stuck, ago=silent))
    assert (found.rank, found.node, found.phase) == (None, "n2", "wait")
    assert "node n2 hangs: does not answer for 130 s" in found.words
    assert silent_nodes(scene(*stuck, ago=silent)) == ["n2"]


def test_of_two_silent_nodes_the_first_is_named_and_the_other_told():
    found = find_hang(scene(*world("wait", 100), sight(4), sight(5), ago={"n2": 50, "n3": 60}))
    assert found.node == "n2"
    assert "1 other node" in found.words


def test_ranks_that_never_came_so_far_as_to_beat():
    found = find_hang(scene(sight(0, "init", 300, step=0), sight(1, "init", 300, step=0), sight(3, "init", 300, step=0), first_done=False))
    assert (found.rank, found.node) == (None, "n2")
    assert "1 of its 2 ranks have not begun" in found.words


def test_who_is_still_in_its_start_while_others_load_is_behind():
    ranks = [sight(0, "load", 500), sight(1, "load", 500), sight(2, "load", 500), sight(3, "init", 500)]
    assert find_hang(scene(*ranks, first_done=False)).rank == 3


def test_a_rank_that_has_no_place_in_the_world_yet_is_told_by_its_process():
    ranks = [sight(0, "load", 500), sight(1, "load", 500), sight(2, "load", 500), sight(3, "init", 500)]
    placed = scene(*ranks, first_done=False)
    odd = replace(placed.heard["n2"].report, ranks=(ranks[2], replace(ranks[3], rank=1)))
    found = find_hang(replace(placed, heard={**placed.heard, "n2": Heard(odd, NOW)}))
    assert (found.rank, found.node) == (None, "n2")
    assert "process 103 on n2" in found.words


def test_collectives_are_compared_within_a_pipeline_stage():
    """Stage 1 enters far fewer by design; in stage 0 rank 1 lacks one."""
    counts = (50, 49, 20, 20)
    ranks = [sight(r, age=120, entered=n) for r, n in enumerate(counts)]
    assert find_hang(scene(*ranks, stages=(0, 0, 1, 1))).rank == 1
    assert find_hang(scene(*ranks)).rank == 2, "without stages"


# --- the shared folder


@pytest.mark.parametrize("phase", ["load", "save", "eval", "data", "step", "wait"])
def test_a_folder_that_stands_still_is_no_hang_up_to_its_own_limit(phase):
    both = {"n1": 799.0, "n2": 799.0}
    assert find_hang(scene(*world(phase, 5000), stall=both)) is None
    assert find_hang(scene(*world(phase, 5000), stall={"n1": 800.0, "n2": 800.0})) is not None
    never = LIMITS.model_copy(update={"storage_s": 0.0})
    assert find_hang(scene(*world(phase, 5000), stall={"n1": 1e6, "n2": 1e6}, limits=never)) is None


def test_a_rank_on_the_node_whose_folder_stands_still_excuses_the_others():
    ranks = (*world("wait", 500)[:3], sight(3, "data", 5000))
    assert find_hang(scene(*ranks, stall={"n2": 10})) is None
    assert find_hang(scene(*ranks, stall={"n1": 10})) is None


def test_when_the_folder_is_back_counting_begins_anew():
    stalled = {"n1": NOW - 90, "n2": NOW - 90}
    assert find_hang(scene(*world("step", 500), stalled=stalled)) is None
    assert find_hang(scene(*world("step", 500), stalled=dict.fromkeys(stalled, NOW - 100))) is not None
