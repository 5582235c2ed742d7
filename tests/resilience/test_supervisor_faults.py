"""What goes wrong, on a stage of fakes: nodes that fall silent, checks that fail, allocations that are too small, ranks that hang."""

from __future__ import annotations

import json

import pytest

from slurmtrain.resilience.signals import TERM
from tests.fakes.agents import FakeAgents
from tests.resilience.stage import ONCE, PEER, Stage


def lose_node_2(stage: Stage) -> None:
    """Ranks of n1 notice, those of n2 say nothing any more."""
    for rank in (0, 1):
        stage.record(rank, "error", PEER, code=1)
    stage.leave()


def test_a_node_failure_waits_for_slurms_requeue_and_ends_with_its_term(tmp_path):
    stage = Stage(tmp_path)
    stage.silent = set()
    stage.train(until=1000)

    def dies() -> None:
        stage.silent = {"n2"}
        lose_node_2(stage)

    stage.at(10.0, dies)
    stage.at(45.0, lambda: stage.slurm.node("n2", "DOWN"))
    stage.at(46.0, lambda: stage.job(state="COMPLETING", reason="None"))
    stage.at(46.5, stage.signal(TERM))
    summary = stage.supervise()
    assert (summary.code, summary.outcome, stage.slurm.requeued) == (75, "node_failure", [])
    assert stage.recorded().outcome.node == "n2"
    assert stage.clock.time() - stage.began < 60


def test_before_it_waits_everything_is_written(tmp_path):
    stage, seen = Stage(tmp_path), {}
    stage.train(until=1000)

    def dies() -> None:
        stage.silent = {"n2"}
        lose_node_2(stage)

    stage.at(10.0, dies)
    stage.at(30.0, lambda: seen.update(code=stage.exit_code, kind=stage.recorded().outcome.kind))
    stage.at(60.0, stage.signal(TERM))
    stage.supervise()
    assert seen == {"code": 75, "kind": "node_failure"}


def test_a_node_that_answers_was_healthy_and_it_was_a_fault(tmp_path):
    stage = Stage(tmp_path, recovery=ONCE)
    stage.train(until=1000)
    stage.at(10.0, lambda: lose_node_2(stage))
    summary = stage.supervise()
    assert (summary.code, summary.outcome) == (93, "failed")
    assert "rank 2" in summary.cause
    assert stage.clock.time() - stage.began < 10 + 30


def test_a_node_whose_agent_speaks_was_healthy_though_no_step_can_be_started_there(tmp_path):
    """Broken: with a full disk a step has no file for its output, and the run stood still until Slurm's own limit."""
    stage = Stage(tmp_path, recovery=ONCE)
    stage.agents = FakeAgents(stage.clock, lively=True)
    stage.train(until=1000)

    def dies() -> None:
        stage.silent = {"n2"}
        lose_node_2(stage)

    stage.at(10.0, dies)
    assert (stage.supervise().outcome, stage.recorded().outcome.category) == ("failed", "rank_crash")
    assert stage.clock.time() - stage.began < 10 + 30
    assert "the agents of n2 speak: not a node failure" in stage.lines


def test_a_node_that_neither_answers_nor_goes_down_is_a_fault_after_slurms_own_limit(tmp_path):
    stage = Stage(tmp_path, recovery=ONCE)
    stage.train(until=1000)

    def dies() -> None:
        stage.silent = {"n2"}
        lose_node_2(stage)

    stage.at(10.0, dies)
    assert stage.supervise().code == 93
    assert 10 + 90 <= stage.clock.time() - stage.began < 180, "SlurmdTimeout is 10 s here"


def test_a_job_that_slurm_leaves_running_without_its_node_is_requeued_by_us(tmp_path):
    stage = Stage(tmp_path)
    stage.train(until=1000)

    def dies() -> None:
        stage.silent = {"n2"}
        stage.slurm.node("n2", "DOWN")
        lose_node_2(stage)

    stage.at(10.0, dies)
    assert stage.supervise().code == 75
    assert stage.slurm.requeued == [stage.job_id]


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"cpus_per_node": 1}, ("1 CPUs", "needs 2")), ({"memory_per_node_bytes": 1 << 30}, ("1.0 GiB", "16.0 GiB"))],
)
def test_fewer_cpus_or_less_memory_than_asked_stop_the_job_with_the_numbers(tmp_path, fields, words):
    from tests.resilience.runs import site_of

    site = site_of("srun", 2, node={"gpus": 2, "memory_bytes": 16 << 30})
    stage = Stage(tmp_path, site=site, recovery=ONCE)
    stage.job(**fields)
    summary = stage.supervise()
    assert (summary.code, summary.outcome, stage.specs) == (93, "launch", [])
    assert all(word in summary.cause for word in words), summary.cause


def test_of_fewer_nodes_than_the_world_needs_slurm_is_asked_for_others_with_the_numbers(tmp_path):
    stage = Stage(tmp_path)
    stage.job(nodes=("n1",))
    summary = stage.supervise()
    assert (summary.code, summary.outcome, stage.slurm.requeued) == (75, "launch", [stage.job_id])
    assert "needs 2 nodes, 1" in summary.cause


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"nonce": "another"}, "no answer"),
        ({"version": "0.0.1"}, "slurmtrain 0.0.1 there"),
        ({"problems": ("cannot write into /x/events: Read-only file system",), "ok": False}, "Read-only file system"),
        ({"cpus": 1}, "1 CPUs for the job there, 2 needed"),
    ],
)
def test_a_node_that_is_not_fit_is_named_and_no_rank_starts(tmp_path, answer, words):
    stage = Stage(tmp_path)
    stage.answer["n2"] = answer
    summary = stage.supervise()
    assert (summary.code, summary.outcome, stage.recorded().outcome.node) == (75, "launch", "n2")
    assert stage.slurm.requeued == [stage.job_id]
    assert list(json.loads(stage.run.exclude_json.read_bytes())["nodes"]) == ["n2"], "C40: the next start would take it again"
    assert "n2: " in summary.cause
    assert words in summary.cause
    assert "n1: " not in summary.cause
    assert all(spec.mpi is None for spec in stage.specs)


def test_a_node_that_does_not_answer_in_time_is_named(tmp_path):
    stage = Stage(tmp_path)
    stage.silent = {"n2"}
    began = stage.clock.time()
    summary = stage.supervise()
    assert (summary.outcome, stage.recorded().outcome.node) == ("launch", "n2")
    assert 60 <= stage.clock.time() - began < 65, "node_check_timeout_s is 60 here"


def test_a_stop_during_the_check_starts_nothing(tmp_path):
    stage = Stage(tmp_path)
    stage.silent = {"n2"}
    stage.clock.at(3.0, stage.run.stop.touch)
    summary = stage.supervise()
    assert (summary.code, summary.outcome) == (0, "stopped")
    assert all(spec.mpi is None for spec in stage.specs)


def test_a_launcher_that_is_not_there_is_said(tmp_path):
    stage = Stage(tmp_path, recovery=ONCE)
    stage.missing = True
    summary = stage.supervise()
    assert (summary.code, summary.outcome) == (93, "launch")
    assert "No such file" in summary.cause


def test_ranks_that_never_speak_are_ended_after_the_start_timeout(tmp_path):
    stage = Stage(tmp_path, recovery=ONCE)
    began = stage.clock.time()
    summary = stage.supervise()
    assert (summary.code, summary.outcome) == (93, "launch")
    assert "start_timeout_s" in summary.cause
    assert 60 <= stage.clock.time() - began < 70


def test_the_last_words_of_ranks_that_never_spoke_are_the_cause(tmp_path):
    stage = Stage(tmp_path, recovery=ONCE)
    log = stage.run.attempt(1).node_log(0)

    def dies() -> None:
        log.write_text("starting\nImportError: libmpi.so.12: cannot open shared object file\n")
        stage.leave()

    stage.at(1.0, dies)
    summary = stage.supervise()
    assert summary.outcome == "launch"
    assert "libmpi.so.12" in summary.cause


def test_after_the_first_fault_the_others_get_their_grace_and_no_more(tmp_path):
    stage = Stage(tmp_path, recovery=ONCE)
    stage.train(until=1000)
    stage.at(10.0, lambda: stage.record(3, "error", "ValueError: bad token", code=1))
    summary = stage.supervise()
    assert (summary.code, summary.outcome) == (93, "failed")
    assert summary.cause.startswith("rank 3 on n2: ValueError: bad token")
    assert 13 <= stage.clock.time() - stage.began <= 15, "exit_grace_s is 3 here"


def test_a_config_record_is_78_and_never_started_again(tmp_path):
    stage = Stage(tmp_path)
    stage.at(2.0, lambda: stage.everybody("config", "MPI sees 1 rank but Slurm started 4"))
    summary = stage.supervise()
    assert (summary.code, summary.outcome, stage.slurm.requeued) == (78, "config", [])


def test_nodes_to_avoid_are_avoided_while_there_are_spares(tmp_path):
    stage = Stage(tmp_path, spares=1)
    now = stage.clock.time()
    nodes = {"n1": {"until": None, "reason": "ECC errors"}, "n2": {"until": now - 1, "reason": "forgiven"}}
    stage.run.exclude_json.write_text(json.dumps({"v": 1, "nodes": nodes}))
    stage.train(until=2)
    stage.supervise()
    assert (stage.recorded().nodes, stage.recorded().spares) == (("n2", "n3"), ("n1",))


def test_a_node_to_avoid_is_used_and_told_when_there_is_no_other(tmp_path):
    stage = Stage(tmp_path)
    stage.run.exclude_json.write_text(json.dumps({"v": 1, "nodes": {"n1": {"until": None, "reason": "ECC errors"}}}))
    stage.train(until=2)
    assert stage.supervise().code == 0
    assert any("n1" in line and "ECC errors" in line for line in stage.lines)


def test_a_changed_package_is_told(tmp_path):
    stage = Stage(tmp_path)
    stage.answer = {node: {"packages": {"torch": "2.12.0"}} for node in ("n1", "n2")}
    stage.at(1.0, lambda: stage.make_step(1))
    stage.at(1.5, lambda: stage.save(1))
    stage.at(2.0, lambda: stage.everybody("stopped", "requeue"))
    stage.supervise()
    stage.start_again()
    stage.answer = {node: {"packages": {"torch": "2.13.0"}} for node in ("n1", "n2")}
    stage.train(until=2)
    stage.supervise()
    assert "changed since the attempt before: torch 2.12.0 -> 2.13.0" in stage.lines


def test_slurm_that_does_not_answer_at_the_start_is_waited_for(tmp_path):
    stage = Stage(tmp_path)
    stage.slurm.down = True
    stage.clock.at(30.0, lambda: setattr(stage.slurm, "down", False))
    stage.train(until=2)
    assert stage.supervise().outcome == "finished"


def test_slurm_that_never_answers_is_a_launch_that_failed(tmp_path):
    stage = Stage(tmp_path)
    stage.slurm.down = True
    began = stage.clock.time()
    summary = stage.supervise()
    assert (summary.code, summary.outcome) == (1, "launch")
    assert "does not answer" in summary.cause
    assert stage.clock.time() - began < 180
