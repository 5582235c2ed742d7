"""One attempt after another in one job, on a stage of fakes: which nodes the next gets, who is avoided, and who may call it off."""

from __future__ import annotations

import json

import pytest

from slurmtrain.resilience.agentwire import NodeReport
from slurmtrain.resilience.budget import read_budget
from slurmtrain.resilience.records import read_owner
from slurmtrain.resilience.signals import INTERRUPT, NOTICE, TERM
from slurmtrain.telemetry.history import read_acts
from tests.resilience.stage import PEER, Stage


def crash(stage: Stage, rank: int = 3, error: str = "ValueError: bad token") -> None:
    """One rank has a fault of its own, the others lose it."""
    for other in range(stage.world):
        stage.record(other, "error", error if other == rank else PEER, code=1)
    stage.leave()


def lose(stage: Stage, *nodes: str) -> None:
    """Nodes fall silent: ranks of the others notice, and no check is answered there any more."""
    stage.silent |= set(nodes)
    of = stage.recorded(stage.attempt).nodes
    for rank in range(stage.world):
        if of[rank // stage.gpus] not in nodes:
            stage.record(rank, "error", PEER, code=1)
    stage.leave()


def avoided(stage: Stage) -> dict[str, dict[str, object]]:
    return json.loads(stage.run.exclude_json.read_bytes())["nodes"] if stage.run.exclude_json.exists() else {}


def finish_later(stage: Stage, attempt: int = 2) -> None:
    stage.train(until=12, first=6, attempt=attempt, save_every=3)


def begin_with_5_steps(stage: Stage) -> None:
    for step in range(1, 6):
        stage.at(float(step), lambda step=step: stage.make_step(step))


def test_a_rank_that_dies_is_followed_by_another_attempt_in_the_same_job(tmp_path):
    stage = Stage(tmp_path)
    begin_with_5_steps(stage)
    stage.at(5.5, lambda: crash(stage))
    finish_later(stage)
    summary = stage.supervise()
    assert (summary.code, summary.outcome, summary.attempt, stage.slurm.requeued) == (0, "finished", 2, [])
    first, second = stage.recorded(1), stage.recorded(2)
    assert (first.outcome.kind, first.outcome.category, first.outcome.rank) == ("failed", "rank_crash", 3)
    assert (second.nodes, second.restart_count) == (first.nodes, 0)
    assert second.t_start - first.outcome.t_end < 2, "the first fault has no pause"
    assert first.t_start <= first.t_checked <= first.t_ranks <= first.outcome.t_end
    assert avoided(stage) == {}, "a crash says nothing about its node"
    assert (read_owner(stage.run.owner_json).attempt, read_owner(stage.run.owner_json).ended) == (2, True)
    assert [act.what for act in read_acts(stage.run)] == ["start", "start", "finish"]


def test_a_dead_node_is_replaced_by_the_spare_without_a_word_of_slurm(tmp_path):
    stage = Stage(tmp_path, spares=1)
    begin_with_5_steps(stage)
    stage.at(5.5, lambda: lose(stage, "n2"))
    finish_later(stage)
    summary = stage.supervise()
    assert (summary.code, summary.outcome, stage.slurm.requeued) == (0, "finished", [])
    first, second = stage.recorded(1), stage.recorded(2)
    assert (first.nodes, first.spares) == (("n1", "n2"), ("n3",))
    assert (first.outcome.kind, first.outcome.node) == ("node_failure", "n2")
    assert (second.nodes, second.spares) == (("n1", "n3"), ())
    assert "node failure" in second.passed_over["n2"]
    assert second.t_ranks - first.outcome.t_end < 30, "SlurmdTimeout and 90 s would be Slurm's word"
    entry = avoided(stage)["n2"]
    assert (entry["reason"], entry["attempt"]) == ("node failure", 1)
    assert entry["until"] == pytest.approx(first.outcome.t_end + 24 * 3600, abs=5)
    assert any("n2 is avoided" in line and "none of its ranks left a record" in line for line in stage.lines)
    assert "n3 in for n2" in stage.lines


def test_two_nodes_at_once_take_two_spares(tmp_path):
    stage = Stage(tmp_path, spares=2)
    begin_with_5_steps(stage)
    stage.at(5.5, lambda: lose(stage, "n1", "n2"))
    finish_later(stage)
    assert stage.supervise().outcome == "finished"
    assert stage.recorded(2).nodes == ("n3", "n4")
    assert set(avoided(stage)) == {"n1", "n2"}


def test_with_fewer_good_nodes_than_the_world_takes_slurm_is_asked_for_others(tmp_path):
    stage = Stage(tmp_path, spares=1)
    begin_with_5_steps(stage)
    stage.at(5.5, lambda: lose(stage, "n2", "n1"))
    summary = stage.supervise()
    assert (summary.code, summary.outcome, stage.slurm.requeued) == (75, "node_failure", [stage.job_id])
    assert stage.run.attempt_numbers() == [1]
    assert any("1 good node of the allocation, 2 needed" in line for line in stage.lines)


def test_a_spare_that_died_unnoticed_costs_its_own_answer_alone(tmp_path):
    """C44: the check of a dead node neither holds up the start nor is it asked again as one of many."""
    stage = Stage(tmp_path, spares=2)
    stage.silent = {"n3"}
    began = stage.clock.time()
    stage.train(until=3)
    assert stage.supervise().outcome == "finished"
    record = stage.recorded()
    assert record.t_ranks - began < 10, "node_check_timeout_s is 60 here"
    assert (record.nodes, record.spares) == (("n1", "n2"), ("n4",))
    assert "did not answer" in record.passed_over["n3"]
    assert avoided(stage) == {}, "to be late once is no reason to be avoided for a day"


def test_a_node_that_fails_its_check_is_left_out_and_a_spare_is_taken(tmp_path):
    """C40: and the next attempt does not ask it again."""
    stage = Stage(tmp_path, spares=1)
    stage.answer["n1"] = {"problems": ("cannot write into /x/events: Read-only file system",), "ok": False}
    begin_with_5_steps(stage)
    stage.at(5.5, lambda: crash(stage))
    finish_later(stage)
    assert stage.supervise().outcome == "finished"
    assert [stage.recorded(n).nodes for n in (1, 2)] == [("n2", "n3"), ("n2", "n3")]
    assert (avoided(stage)["n1"]["reason"], avoided(stage)["n1"]["attempt"]) == ("failed its check", 1)
    assert "Read-only file system" in str(avoided(stage)["n1"]["evidence"])
    asked = [spec.nodes for spec in stage.specs if spec.mpi is None and spec.output.parent.name == "0002"]
    assert asked
    assert all("n1" not in nodes for nodes in asked)


def test_where_all_nodes_fail_their_check_it_is_not_the_nodes(tmp_path):
    stage = Stage(tmp_path, recovery={"no_progress": 1})
    stage.answer = {node: {"version": "0.0.1"} for node in ("n1", "n2")}
    assert stage.supervise().code == 93
    assert avoided(stage) == {}


def test_a_silent_agent_is_a_node_that_is_not_taken(tmp_path):
    stage = Stage(tmp_path, spares=1)
    stage.agents.alive = True
    say_hello(stage, "n1", "n2", "n3")
    begin_with_5_steps(stage)
    stage.at(30.0, lambda: say_hello(stage, "n1", "n3"))
    stage.at(30.5, lambda: crash(stage))
    for second in range(31, 60):
        stage.clock.at(second, lambda: say_hello(stage, "n1", "n3"))
    finish_later(stage)
    assert stage.supervise().outcome == "finished"
    assert stage.recorded(2).nodes == ("n1", "n3")
    assert "agent is silent" in stage.recorded(2).passed_over["n2"]


def test_a_dead_nodes_agent_tells_by_its_silence_before_a_step_has_failed(tmp_path):
    stage = Stage(tmp_path, spares=1)
    stage.agents.alive = True
    begin_with_5_steps(stage)
    for second in range(200):
        stage.clock.at(second / 2, lambda s=second: say_hello(stage, *(("n1", "n2", "n3") if s < 10 else ("n1", "n3"))))
    stage.at(10.0, lambda: lose(stage, "n2"))
    finish_later(stage)
    assert stage.supervise().outcome == "finished"
    assert stage.recorded(1).outcome.node == "n2"
    assert stage.recorded(2).t_start - stage.recorded(1).t_ranks < 10 + 5


def say_hello(stage: Stage, *nodes: str) -> None:
    """Reports of agents, which have done all that they were told."""
    done = {order.number: "nothing was left" for order in stage.agents.orders}
    for node in nodes:
        stage.agents.report(NodeReport(node, 1, stage.attempt, 0.0, done=done))


def test_agents_hear_which_ranks_to_watch_and_to_sweep_behind_each_attempt(tmp_path):
    stage = Stage(tmp_path)
    stage.agents.alive = True
    begin_with_5_steps(stage)
    stage.at(5.5, lambda: crash(stage))
    finish_later(stage)
    for second in range(200):
        stage.clock.at(second / 2, lambda: say_hello(stage, "n1", "n2"))
    assert stage.supervise().outcome == "finished"
    orders = [(order.kind, order.attempt) for order in stage.agents.orders]
    assert orders == [("watch", 1), ("sweep", 1), ("watch", 2), ("sweep", 2)]
    assert stage.agents.orders[0].ranks == {"n1": (0, 1), "n2": (2, 3)}
    assert len({order.number for order in stage.agents.orders}) == 4
    assert stage.agents.started[0] == ("n1", "n2")
    assert stage.agents.closed


def test_what_a_person_avoids_stays_avoided_and_written(tmp_path):
    stage = Stage(tmp_path, spares=2)
    theirs = {"n1": {"until": None, "reason": "ECC errors", "ticket": "17"}}
    stage.run.exclude_json.write_text(json.dumps({"v": 1, "nodes": theirs}))
    begin_with_5_steps(stage)
    stage.at(5.5, lambda: lose(stage, "n2"))
    finish_later(stage)
    assert stage.supervise().outcome == "finished"
    assert stage.recorded(2).nodes == ("n3", "n4")
    assert avoided(stage)["n1"] == theirs["n1"]
    assert "n2" in avoided(stage)


def test_a_budget_that_is_spent_ends_the_run_with_93_and_says_what_was_tried(tmp_path):
    stage = Stage(tmp_path)
    for attempt in (1, 2, 3):
        stage.at(1.0, lambda: stage.make_step(1), attempt)
        stage.at(1.5, lambda: crash(stage), attempt)
    summary = stage.supervise()
    assert (summary.code, stage.exit_code, stage.run.attempt_numbers(), stage.slurm.requeued) == (93, 93, [1, 2, 3], [])
    assert stage.recorded(3).t_start - stage.recorded(2).outcome.t_end >= 10, "backoff_s"
    assert read_budget(stage.run).by_cause == {"rank_crash": 3}
    assert len([line for line in stage.lines if line.startswith("tried: attempt")]) == 3


def test_a_budget_that_cannot_be_written_is_spent_all_the_same(tmp_path):
    """Broken: a full disk, or a folder in the place of the file, bought restarts without end."""
    stage = Stage(tmp_path)
    stage.run.budget_json.mkdir()
    for attempt in range(1, 9):
        stage.at(1.0, lambda: stage.make_step(1), attempt)
        stage.at(1.5, lambda: crash(stage), attempt)
    assert stage.supervise().code == 93
    assert stage.run.attempt_numbers() == [1, 2, 3]


def two_crashes(tmp_path, **make) -> Stage:
    """A run whose third attempt would come after a pause of 100 s; `paused` seconds after that begins a test may do something."""
    stage = Stage(tmp_path, recovery={"backoff_s": 100.0, "no_progress": 9, "budgets": {"rank_crash": 9}}, **make)
    for attempt in (1, 2):
        stage.at(1.0, lambda: stage.make_step(1), attempt)
        stage.at(1.5, lambda: crash(stage), attempt)
    stage.train(until=3, attempt=3)
    return stage


@pytest.mark.parametrize(
    ("name", "deed", "code", "kind", "requeued"),
    [
        ("USR2", lambda s: s.signals.receive(NOTICE), 75, "requeue", 1),
        ("STOP", lambda s: s.run.stop.touch(), 0, "stopped", 0),
        ("TERM at the time limit", lambda s: (s.job(state="COMPLETING", reason="TimeLimit"), s.signals.receive(TERM)), 75, "requeue", 1),
        ("scancel", lambda s: (s.job(state="COMPLETING", reason="None"), s.signals.receive(TERM)), 75, "requeue", 0),
        (
            "preempted by requeue",
            lambda s: (s.job(state="PENDING", reason="BeginTime", restarts=1), s.signals.receive(TERM)),
            75,
            "requeue",
            0,
        ),
        ("the end is near", lambda s: s.job(end_time=s.clock.time() + 61.0), 75, "requeue", 1),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_who_calls_in_a_pause_is_heard_at_once(tmp_path, name, deed, code, kind, requeued):  # noqa: PLR0917
    stage = two_crashes(tmp_path)
    stage.at(20.0, lambda: deed(stage), 2)
    called = []
    stage.at(20.0, lambda: called.append(stage.clock.time()), 2)
    summary = stage.supervise()
    assert (summary.code, summary.outcome, len(stage.slurm.requeued)) == (code, kind, requeued)
    assert len([spec for spec in stage.specs if spec.mpi is not None]) == 2, "a third world was started"
    assert stage.clock.time() - called[0] < 35, "the pause is 100 s"
    assert stage.recorded(3).outcome.kind == kind


def test_ctrl_c_in_a_pause_ends_it(tmp_path):
    stage = two_crashes(tmp_path)
    stage.at(20.0, stage.signal(INTERRUPT), 2)
    summary = stage.supervise(foreground=True)
    assert (summary.outcome, stage.slurm.requeued) == ("stopped", [])
    assert stage.clock.time() - stage.began < 60, "the pause is 100 s"
    assert len([spec for spec in stage.specs if spec.mpi is not None]) == 2


def test_a_pause_that_nobody_interrupts_is_followed_by_the_next_attempt(tmp_path):
    stage = two_crashes(tmp_path)
    assert stage.supervise().outcome == "finished"
    assert 100 <= stage.recorded(3).t_start - stage.recorded(2).outcome.t_end < 102


def test_signals_during_the_check_of_a_later_attempt_are_heard(tmp_path):
    stage = Stage(tmp_path)
    begin_with_5_steps(stage)

    def dies() -> None:
        crash(stage)
        stage.silent = {"n1", "n2"}
        stage.clock.at(5.0, stage.signal(NOTICE))

    stage.at(5.5, dies)
    assert stage.supervise().outcome == "requeue"
    assert stage.slurm.requeued == [stage.job_id]
    assert len([spec for spec in stage.specs if spec.mpi is not None]) == 1


def test_before_the_jobs_end_there_is_no_further_start_but_a_requeue(tmp_path):
    stage = Stage(tmp_path)
    begin_with_5_steps(stage)
    stage.at(5.5, lambda: (stage.job(end_time=stage.clock.time() + 50.0), crash(stage)))
    summary = stage.supervise()
    assert (summary.code, summary.outcome, stage.slurm.requeued) == (75, "failed", [stage.job_id])
    assert stage.run.attempt_numbers() == [1]


def test_a_code_that_was_written_while_slurms_word_was_awaited_does_not_stay(tmp_path):
    """Broken: a supervisor that is killed in the next attempt is not started again, and the job ends with 75."""
    stage = Stage(tmp_path)
    begin_with_5_steps(stage)
    stage.at(5.5, lambda: [stage.record(rank, "error", PEER, code=1) for rank in (0, 1)] and stage.leave())
    seen = []
    stage.at(1.0, lambda: seen.append(stage.run.exit_code.exists()), 2)
    finish_later(stage)
    assert stage.supervise().outcome == "finished"
    assert seen == [False]


def test_in_place_can_be_turned_off(tmp_path):
    stage = Stage(tmp_path, recovery={"in_place": False})
    begin_with_5_steps(stage)
    stage.at(5.5, lambda: crash(stage))
    assert (stage.supervise().code, stage.slurm.requeued, stage.run.attempt_numbers()) == (75, [stage.job_id], [1])


def test_in_the_foreground_a_crash_is_tried_again_and_nothing_requeued(tmp_path):
    stage = Stage(tmp_path)
    begin_with_5_steps(stage)
    stage.at(5.5, lambda: crash(stage))
    finish_later(stage)
    assert stage.supervise(foreground=True).outcome == "finished"
    assert stage.slurm.requeued == []


def test_an_elastic_run_goes_on_with_the_nodes_that_are_left(tmp_path):
    stage = Stage(tmp_path, recovery={"elastic": True})
    begin_with_5_steps(stage)
    stage.at(5.5, lambda: lose(stage, "n2"))
    stage.train(until=12, first=6, attempt=2)
    assert stage.supervise().code in {0, 75}
    second = stage.recorded(2)
    assert (second.nodes, second.world) == (("n1",), 2)
    plan = json.loads(stage.run.attempt(2).plan_json.read_bytes())
    whole = json.loads(stage.run.plan_json.read_bytes())
    assert (plan["nodes"], plan["dp"]) == (1, whole["dp"] // 2)
    assert plan["microbatches"] * plan["dp"] * plan["micro_batch"] == whole["global_batch"]
    assert not stage.run.attempt(1).plan_json.exists()
