"""What agents tell, on a stage of fakes: attempts that hang end in time, with the suspect named; what only looks like it does not."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from slurmtrain.resilience.agentwire import NodeReport, RankSight
from slurmtrain.resilience.exclude import read_excluded
from slurmtrain.telemetry.reader import read_events
from tests.resilience.stage import ONCE, Stage, StageStep

HANG = {"hang": {"step_s": 30, "first_step_s": 100, "save_s": 500, "load_s": 300, "storage_s": 300}}
Does = Callable[[float, int], RankSight | None]


def stage_of(tmp_path, *, once: bool = True, recovery=None, **more) -> Stage:
    stage = Stage(tmp_path, recovery={**HANG, **(ONCE if once else {}), **(recovery or {})}, **more)
    stage.agents.alive = True
    return stage


def does(t: float, rank: int, phase: str = "step", since: float | None = None, step: int | None = None, **more: object) -> RankSight:
    """A rank at `t` seconds; `since`: it has not moved from then on."""
    age = 0.5 if since is None else t - since
    return RankSight(rank, 100 + rank, "runs", phase, int(t) if step is None else step, age, age, **more)


def tell(stage: Stage, what: Does, *, seconds: int, answers: bool = True, silent=None, stall=None) -> None:
    """Every node reports once a second. `silent`: node to the second from which on it does not; `stall`: of the shared folder, by second.

    `answers`: nodes tell where their ranks are when they are asked.
    """

    def report(t: int) -> None:
        orders = [order.number for order in stage.agents.orders if order.kind == "stacks" and answers]
        nodes = stage.recorded(stage.attempt).nodes
        for index, node in enumerate(nodes):
            if t < (silent or {}).get(node, 1e9):
                ranks = (what(t, rank) for rank in range(index * stage.gpus, (index + 1) * stage.gpus))
                here = tuple(one for one in ranks if one is not None)
                done = dict.fromkeys(orders, f"stacks of {node}")
                stage.agents.report(NodeReport(node, t, stage.attempt, t, here, stall(t) if stall else 0.0, done))

    for t in range(seconds):
        stage.at(t, lambda t=t: report(t))


def steps(stage: Stage, until: int, first: int = 1, attempt: int = 0) -> None:
    for step in range(first, until + 1):
        stage.at(step, lambda step=step: stage.make_step(step), attempt)


def stuck(t: float, rank: int) -> RankSight:
    """Ten steps; then rank 3 stays in its eleventh, and the others wait for it."""
    if t <= 10:
        return does(t, rank)
    return does(t, rank, "step", 10, 10) if rank == 3 else does(t, rank, "wait", 10.2, 10)


def test_a_rank_that_stays_in_its_step_ends_the_attempt_with_its_name_and_stacks(tmp_path):
    stage = stage_of(tmp_path)
    steps(stage, 10)
    tell(stage, stuck, seconds=200)
    assert stage.supervise().code == 93
    outcome, began = stage.recorded().outcome, stage.began
    assert (outcome.kind, outcome.category, outcome.rank, outcome.node, outcome.step) == ("failed", "hang", 3, "n2", 10)
    assert "rank 3 on n2 hangs: the others wait for it" in outcome.cause
    assert outcome.fault_t == pytest.approx(began + 10, abs=1.1)
    assert outcome.seen_t == pytest.approx(began + 40, abs=2)
    assert outcome.t_end < began + 45, "the nodes' answers were there"
    assert "n2: stacks of n2" in stage.lines
    assert [(o.attempt, o.nodes) for o in stage.agents.orders if o.kind == "stacks"] == [(1, ("n1", "n2"))]


def test_nodes_that_do_not_tell_where_their_ranks_are_cost_ten_seconds(tmp_path):
    stage = stage_of(tmp_path)
    steps(stage, 10)
    tell(stage, stuck, seconds=200, answers=False)
    stage.supervise()
    assert stage.recorded().outcome.category == "hang"
    assert 49 < stage.recorded().outcome.t_end - stage.began < 55


def test_ranks_that_move_again_are_left_alone(tmp_path):
    stage = stage_of(tmp_path)
    steps(stage, 10)
    steps(stage, 80, first=45)
    stage.at(80.5, lambda: stage.everybody("finished"))
    tell(stage, lambda t, rank: stuck(t, rank) if t < 44 else does(t, rank), seconds=90, answers=False)
    assert stage.supervise().code == 0
    assert "the ranks move again" in stage.lines
    assert (stage.recorded().outcome.fault_t, stage.recorded().outcome.seen_t) == (None, None)


def test_ranks_that_moved_and_hang_again_are_asked_again(tmp_path):
    stage = stage_of(tmp_path)
    steps(stage, 10)
    steps(stage, 80, first=45)

    def what(t: float, rank: int) -> RankSight:
        if t < 44:
            return stuck(t, rank)
        return does(t, rank) if t < 80 else does(t, rank, "step" if rank == 1 else "wait", 80, 80)

    tell(stage, what, seconds=200, answers=False)
    stage.supervise()
    outcome = stage.recorded().outcome
    assert (outcome.category, outcome.rank) == ("hang", 1)
    assert (outcome.fault_t - stage.began, outcome.seen_t - stage.began) == (pytest.approx(80, abs=2), pytest.approx(110, abs=2))
    assert len([order for order in stage.agents.orders if order.kind == "stacks"]) == 2


def test_ranks_that_are_gone_once_the_step_was_ended_do_not_move_again(tmp_path, monkeypatch):
    """To end a step takes a while on a node that hangs; by then the agents see no rank any more."""
    stage = stage_of(tmp_path)
    ended = StageStep.end
    monkeypatch.setattr(StageStep, "end", lambda step, grace_s: (ended(step, grace_s), stage.clock.advance(5)))
    steps(stage, 10)
    tell(stage, lambda t, rank: stuck(t, rank) if t < 43 else None, seconds=200)
    stage.supervise()
    assert stage.recorded().outcome.seen_t - stage.began == pytest.approx(40, abs=2)
    assert "the ranks move again" not in stage.lines


def test_a_long_save_is_no_hang(tmp_path):
    stage = stage_of(tmp_path)
    steps(stage, 10)
    stage.at(470, lambda: stage.everybody("finished"))
    tell(stage, lambda t, rank: does(t, rank) if t < 10 else does(t, rank, "save" if rank == 1 else "wait", 10, 10), seconds=475)
    assert stage.supervise().code == 0


def test_a_shared_folder_that_stands_still_for_two_minutes_is_no_hang_and_a_stopped_rank_is(tmp_path):
    stage = stage_of(tmp_path)
    steps(stage, 10)
    steps(stage, 160, first=140)

    def what(t: float, rank: int) -> RankSight:
        if t < 10 or 130 <= t < 160:
            return does(t, rank)
        if t < 130:
            return does(t, rank, "data" if rank == 0 else "wait", 10, 10)
        if rank == 2:
            return RankSight(2, 102, "stopped", "data", 160, t - 160, t - 160)
        return does(t, rank, "wait", 160.2, 160)

    tell(stage, what, seconds=400, stall=lambda t: t - 10 if 12 <= t < 130 else 0.0)
    stage.supervise()
    outcome = stage.recorded().outcome
    assert (outcome.category, outcome.rank, outcome.node) == ("hang", 2, "n2")
    assert outcome.seen_t - stage.began == pytest.approx(190, abs=2)


def test_a_node_that_stops_answering_is_found_within_the_limit_of_a_step(tmp_path):
    """C30's kin: nothing of the node moves, its agent neither. The connections stay."""
    stage = stage_of(tmp_path)
    steps(stage, 10)
    tell(stage, lambda t, rank: does(t, rank) if t < 10 else does(t, rank, "wait", 10, 10), seconds=200, silent={"n2": 10})
    stage.supervise()
    outcome = stage.recorded().outcome
    assert (outcome.category, outcome.rank, outcome.node) == ("hang", None, "n2")
    assert outcome.seen_t - stage.began == pytest.approx(40, abs=2)


def test_a_start_in_which_a_rank_stays_behind_names_it(tmp_path):
    stage = stage_of(tmp_path)
    tell(stage, lambda t, rank: does(t, rank, "load" if rank else "init", 1, 0), seconds=500)
    stage.supervise()
    outcome = stage.recorded().outcome
    assert (outcome.category, outcome.rank, outcome.node) == ("hang", 0, "n1"), outcome.cause
    assert outcome.seen_t - stage.began == pytest.approx(301, abs=2)


def test_a_start_that_hangs_in_mpi_ends_at_its_limit(tmp_path):
    stage = stage_of(tmp_path)
    tell(stage, lambda t, rank: None if rank == 2 else does(t, rank, "init", 1, 0), seconds=500)
    stage.supervise()
    outcome = stage.recorded().outcome
    assert (outcome.category, outcome.node) == ("hang", "n2")
    assert "1 of its 2 ranks have not begun" in outcome.cause
    assert outcome.seen_t - stage.began == pytest.approx(61, abs=2), "start_timeout_s is 60"


def test_a_load_that_takes_longer_than_a_start_may_is_waited_for(tmp_path):
    stage = stage_of(tmp_path)
    tell(stage, lambda t, rank: does(t, rank, "load", 1, 0) if t < 200 else does(t, rank), seconds=230)
    steps(stage, 220, first=201)
    stage.at(221, lambda: stage.everybody("finished"))
    assert stage.supervise().code == 0


def test_without_agents_nothing_is_asked_and_nobody_hangs(tmp_path):
    stage = stage_of(tmp_path)
    stage.agents.alive = False
    steps(stage, 10)
    stage.at(300, lambda: stage.everybody("finished"))
    assert stage.supervise().code == 0
    assert [order.kind for order in stage.agents.orders if order.kind == "stacks"] == []


def test_a_time_out_of_torchs_below_ours_is_told(tmp_path):
    stage = stage_of(tmp_path, recovery={"hang": {"step_s": 60}})
    stage.train(until=2)
    stage.supervise()
    assert [line for line in stage.lines if "collective_timeout_s = 60 of the site is not above recovery.hang.step_s = 60" in line]


@pytest.mark.parametrize("record", [True, False])
def test_of_other_ends_the_newest_step_and_the_moment_of_notice_are_recorded(tmp_path, record):
    """A rank that ends 0.7 s after step 10: with a record, or without a word (then the launcher's end tells)."""
    stage = stage_of(tmp_path)
    steps(stage, 10)
    stage.at(10.7, lambda: stage.record(2, "error", "ValueError: no", 1) if record else stage.leave())
    stage.supervise()
    outcome = stage.recorded().outcome
    assert outcome.category == "rank_crash"
    assert outcome.fault_t - stage.began == pytest.approx(10, abs=0.01)
    assert outcome.seen_t - stage.began == pytest.approx(11, abs=0.51)


def test_an_end_that_all_agreed_on_is_no_fault(tmp_path):
    stage = stage_of(tmp_path)
    stage.train(until=5)
    stage.supervise()
    assert (stage.recorded().outcome.fault_t, stage.recorded().outcome.seen_t) == (None, None)


# --- slow ranks


def slow(t: float, rank: int) -> RankSight:
    return does(t, rank, work_s=1.9 if rank == 3 else 1.0)


def test_a_rank_that_stays_slow_is_told_once(tmp_path):
    stage = stage_of(tmp_path, recovery={"stragglers": {"steps": 10}})
    stage.train(until=60)
    tell(stage, slow, seconds=60)
    assert stage.supervise().code == 0
    told = [event for event in read_events(stage.run.events) if event.kind == "straggler"]
    assert [(e.attempt, e.rank, e.fields["node"], e.fields["factor"]) for e in told] == [(1, 3, "n2", 1.9)]
    assert len([line for line in stage.lines if "rank 3 on n2 is slow" in line]) == 1


def test_a_slow_ranks_node_is_left_at_a_checkpoint_where_that_is_asked(tmp_path):
    stage = stage_of(tmp_path, once=False, recovery={"stragglers": {"steps": 10, "exclude": True}}, spares=1)
    steps(stage, 60)
    tell(stage, slow, seconds=60)
    stage.train(until=20, first=11, attempt=2)
    stage.supervise()
    first, second = stage.recorded(1), stage.recorded(2)
    assert (first.outcome.kind, first.outcome.category, first.outcome.rank, first.outcome.node) == ("requeue", "hang", 3, "n2")
    assert first.outcome.last_durable_step == first.outcome.step
    assert "stopped at a checkpoint: rank 3 on n2 is slow" in first.outcome.cause
    assert second.nodes == ("n1", "n3")
    assert second.outcome.kind == "finished"
    assert "n2" in read_excluded(stage.run.exclude_json, stage.clock.time())


def test_a_slow_node_that_is_used_for_want_of_others_is_told_and_kept(tmp_path):
    stage = stage_of(tmp_path, recovery={"stragglers": {"steps": 10, "exclude": True}})
    stage.run.exclude_json.write_text(json.dumps({"v": 1, "nodes": {"n2": {"until": None, "reason": "slow"}}}))
    stage.train(until=60)
    tell(stage, slow, seconds=60)
    assert stage.supervise().code == 0
    assert [line for line in stage.lines if "rank 3 on n2 is slow" in line]
