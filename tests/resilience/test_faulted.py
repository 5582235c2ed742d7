"""An attempt's end goes to the site's fault log and command, and costs the run nothing whatever becomes of it."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.config.site import SiteReliability
from slurmtrain.report.folder import read_story
from slurmtrain.report.goodput import accounts
from slurmtrain.resilience import faulted
from slurmtrain.resilience.faulted import log_end
from slurmtrain.resilience.records import AttemptRecord, Outcome
from slurmtrain.telemetry.faultlog import read_ends
from tests.fakes.clock import FakeClock
from tests.fakes.shell import FakeShell, Said
from tests.resilience.runs import site_of
from tests.resilience.stage import Stage
from tests.resilience.test_in_place import begin_with_5_steps, finish_later, lose
from tests.resilience.test_takeover import kill

NOW = 1_700_000_000.0
RECORD = AttemptRecord(2, "4711", 0, NOW, ("n2", "n1"), ("n3",), 4, 8)
LOST = Outcome("node_failure", "node n2 is lost: none of its ranks left a record", node="n2", t_end=NOW + 7200, category="node_failure")
CRASH = Outcome("failed", "rank 3 on n1: ValueError: my secret path", rank=3, node="n1", t_end=NOW + 3600, category="rank_crash")


def around(clock=None, **wish):
    site = SimpleNamespace(name="alps", reliability=SiteReliability(**wish))
    lines: list[str] = []
    c = SimpleNamespace(
        setup=SimpleNamespace(site=site), run=SimpleNamespace(name="llama"), clock=clock or SystemClock(), say=lines.append, environ={}
    )
    return c, lines


def test_every_end_is_logged_with_its_node_days_and_a_nodes_fault_with_its_words(tmp_path):
    path = tmp_path / "faults.jsonl"
    c, lines = around(fault_log=path)
    log_end(c, RECORD, LOST, ["n2"])
    log_end(c, RECORD, CRASH)
    lost, crash = read_ends(path)
    assert (lost.nodes, lost.hours, lost.bad, lost.cause, lost.detail) == ("n[1-3]", 2.0, "n2", "node_failure", LOST.cause)
    assert (lost.site, lost.job_id, lost.attempt, lost.t) == ("alps", "4711", 2, NOW + 7200)
    assert (crash.hours, crash.bad, crash.cause, crash.detail) == (1.0, "", "rank_crash", ""), "a user's error is the user's"
    assert lines == []


def test_nothing_is_done_where_nobody_asked():
    c, lines = around()
    log_end(c, RECORD, LOST, ["n2"], shell=FakeShell({}))
    assert lines == []


def test_a_log_that_cannot_be_written_is_said(tmp_path):
    c, lines = around(fault_log=tmp_path / "gone" / "faults.jsonl")
    log_end(c, RECORD, LOST, ["n2"])
    assert lines == [f"{tmp_path}/gone/faults.jsonl: No such file or directory: the end of the attempt is not in the site's fault log"]


def test_a_folder_that_hangs_is_left_alone(tmp_path, monkeypatch):
    hangs = threading.Event()
    monkeypatch.setattr(faulted, "append", lambda path, line: hangs.wait(60))
    clock = FakeClock()
    c, lines = around(clock, fault_log=tmp_path / "faults.jsonl")
    before = clock.monotonic()
    log_end(c, RECORD, LOST, ["n2"])
    hangs.set()
    assert clock.monotonic() - before == faulted.PATIENCE_S
    assert lines == [f"{tmp_path}/faults.jsonl does not answer: the end of the attempt is not in the site's fault log"]


def test_the_sites_command_is_run_for_each_bad_node_and_for_no_other_end():
    command = "/usr/sbin/report --node={node} '{cause} of {run}' {job} {attempt} {detail}"
    shell = FakeShell({("/usr/sbin/report",): Said()})
    c, lines = around(fault_command=command)
    log_end(c, RECORD, LOST, ["n2", "n3"], shell=shell)
    log_end(c, RECORD, CRASH, shell=shell)
    assert [call.argv for call in shell.calls] == [
        ("/usr/sbin/report", f"--node={node}", "node_failure of llama", "4711", "2", LOST.cause) for node in ("n2", "n3")
    ]
    assert json.loads(shell.calls[0].stdin)["bad"] == "n[2-3]"
    assert lines == []


def test_a_command_that_fails_is_said():
    for said, words in ((Said(rc=3, err="no such node\n"), "code 3: no such node"), (Said(seconds=1e6), "code 124")):
        c, lines = around(fault_command="report {node}")
        log_end(c, RECORD, LOST, ["n2"], shell=FakeShell({("report",): said}))
        assert len(lines) == 1
        assert words in lines[0]


def test_a_run_that_loses_a_node_is_in_the_log_and_in_the_accounts(tmp_path):
    """The supervisor on a stage: a node dies, its spare steps in, the run finishes."""
    log = tmp_path / "faults.jsonl"
    stage = Stage(tmp_path, spares=1, site=site_of("srun", 2, reliability={"fault_log": log}))
    begin_with_5_steps(stage)
    stage.at(5.5, lambda: lose(stage, "n2"))
    finish_later(stage)
    assert stage.supervise().outcome == "finished"
    first, second = stage.recorded(1), stage.recorded(2)
    lost, finished = read_ends(log)
    assert (lost.cause, lost.bad, lost.nodes, lost.job_id) == ("node_failure", "n2", "n[1-3]", stage.job_id)
    assert lost.hours == round((first.outcome.t_end - first.t_start) / 3600, 6)
    assert (finished.cause, finished.bad, finished.nodes) == ("finished", "", "n[1-3]")
    told = accounts(read_story(stage.run))
    assert sum(told.parts_us.values()) == told.wall_us == round(second.outcome.t_end * 1e6) - round(first.t_start * 1e6)
    assert told.gpu_us["spares"] == 2 * told.wall_us, "one node of two GPUs beside the world, all the time: a spare, then the dead one"
    assert told.causes["node_failure"].ends == told.faults == 1
    assert told.detail_us.get("restart", 0) == round(second.t_start * 1e6) - round(first.outcome.t_end * 1e6)
    assert told.parts_us["productive"] == 12e6, "twelve steps of a second stand"


@pytest.mark.parametrize(("state", "cause", "bad"), [("DOWN", "node_failure", "n1"), ("IDLE", "launch_failure", "")])
def test_a_batch_host_that_is_lost_with_its_supervisor_is_told_of_by_the_next(tmp_path, state, cause, bad):
    log = tmp_path / "faults.jsonl"
    stage = Stage(tmp_path, site=site_of("srun", 2, reliability={"fault_log": log}))
    kill(stage)
    stage.start_again()
    stage.slurm.node("n1", state)
    stage.train(until=12, first=5, attempt=2)
    assert stage.supervise().outcome == "finished"
    first, second = read_ends(log)
    assert (first.attempt, first.cause, first.bad, first.nodes) == (1, cause, bad, "n[1-2]")
    assert (second.attempt, second.cause) == (2, "finished")
    stage.run.finished.unlink()
    stage.start_again(restarts=2)
    stage.train(until=12, first=12)
    assert stage.supervise().outcome == "finished"
    assert [end.attempt for end in read_ends(log)] == [1, 2, 3], "an end that is there is not told again"


def test_an_attempt_whose_supervisor_was_killed_is_told_of_by_its_successor(tmp_path):
    log = tmp_path / "faults.jsonl"
    stage = Stage(tmp_path, site=site_of("srun", 2, reliability={"fault_log": log}))
    kill(stage)
    stage.train(until=12, first=5, attempt=2)
    assert stage.supervise().outcome == "finished"
    assert [(end.attempt, end.cause, end.bad) for end in read_ends(log)] == [(1, "launch_failure", ""), (2, "finished", "")]
