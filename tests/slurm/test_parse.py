"""Slurm's text, recorded on real clusters of 22.05 and 24.11 (tests/slurm/data), as values."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from slurmtrain.errors import SlurmError
from slurmtrain.slurm import parse
from slurmtrain.slurm.types import NodePlace, StepInfo

DATA = Path(__file__).parent / "data"
VERSIONS = ("2205", "2411")
COMMENT = "run=/l/it's $HOME JobState=FAILED StdErr=x"
NAME = "llama 8b|x JobState=FAILED"


@pytest.fixture(params=VERSIONS)
def recorded(request):
    return lambda name: (DATA / request.param / f"{name}.txt").read_text()


def one(text: str):
    (info,) = parse.jobs(text)
    return info


def test_a_running_job_whose_name_and_comment_look_like_slurms_words(recorded):
    info = one(recorded("job_running"))
    assert (info.job_id, info.name, info.state, info.comment, info.user) == ("1", NAME, "RUNNING", COMMENT, "root")
    assert info.nodes in {("n1", "n2"), ("n3", "n4")}
    assert info.batch_host == info.nodes[0]
    assert (info.reason, info.restarts, info.partition, info.array, info.exit_code, info.ended) == ("", 0, "main", None, None, False)
    assert info.end_time - info.start_time == 600
    assert (info.cpus_per_node, info.memory_per_node_bytes) == (8, 16000 << 20)


@pytest.mark.parametrize("moment", ["SIGNALING", "RESIZING"])
def test_a_job_that_is_sent_a_signal_runs(recorded, moment):
    """As `scontrol show job` had it just after `scancel --batch --signal`."""
    info = one(recorded("job_running").replace(" JobState=RUNNING", f" JobState={moment}"))
    assert (info.state, info.ended, info.name) == ("RUNNING", False, NAME)


def test_times_in_the_local_form_mean_the_same_moment(recorded):
    text = recorded("job_running_standard_time")
    shown = text.partition("StartTime=")[2].split()[0]
    assert one(text).start_time == datetime.strptime(shown, "%Y-%m-%dT%H:%M:%S").timestamp()  # noqa: DTZ007 local, as Slurm prints it
    assert one(text).comment == COMMENT


def test_an_array_is_its_waiting_part_and_its_members(recorded):
    waiting, member = parse.jobs(recorded("job_array"))
    assert (waiting.job_id, waiting.state, waiting.reason, waiting.array) == ("2", "PENDING", "JobArrayTaskLimit", ("2", "2-3%1"))
    assert (member.job_id, member.state, member.array, member.comment) == ("2_1", "RUNNING", ("2", "1"), "plain")
    assert one(recorded("job_array_member")) == member
    assert one(recorded("job_array_waiting_member")).job_id == "2_3"


def test_a_preempted_job_runs_on_until_its_end_time():
    text = (DATA / "2205/job_in_grace.txt").read_text()  # 1 s after TERM; GraceTime of the partition is 25 s
    info = one(text)
    assert (info.state, info.reason, info.in_grace) == ("RUNNING", "", True)
    assert info.preempt_time is not None
    assert info.end_time == info.preempt_time + 25
    assert not one(text.replace("PreemptTime=2026-11-29T14:49:54", "PreemptTime=None")).in_grace


def test_a_requeued_job_waits_and_has_not_ended(recorded):
    info = one(recorded("job_requeued"))
    assert (info.state, info.reason, info.restarts, info.nodes, info.batch_host, info.ended) == ("PENDING", "BeginTime", 1, (), "", False)
    assert info.start_time is not None
    assert (info.end_time, info.exit_code) == (None, None)


def test_a_cancelled_job_that_is_completing_has_no_reason(recorded):
    info = one(recorded("job_completing"))
    assert (info.state, info.reason, info.comment, info.ended) == ("COMPLETING", "", COMMENT, False)
    assert len(info.nodes) == 1
    assert info.cpus_per_node == 8  # of the two nodes that it had


def test_a_failed_job_keeps_its_code(recorded):
    info = one(recorded("job_failed"))
    assert (info.state, info.reason, info.exit_code, info.ended) == ("FAILED", "NonZeroExitCode", 7, True)


def test_a_held_job(recorded):
    info = one(recorded("job_held"))
    assert (info.state, info.reason, info.nodes, info.start_time) == ("PENDING", "JobHeldUser", (), None)


def test_an_allocation_without_a_script(recorded):
    info = one(recorded("job_salloc"))
    assert (info.name, info.state, info.comment) == ("sal loc", "RUNNING", "x Reason=foo StdErr=a")


def test_a_job_without_a_comment_has_none_even_where_admins_left_theirs():
    text = (DATA / "2205/job_failed.txt").read_text().replace(" StdErr=", " AdminComment=seen by=ops  StdErr=")
    assert one(text).comment == ""
    both = text.replace(" StdErr=", " Comment=mine  StdErr=")
    assert one(both).comment == "mine"


def test_a_comment_of_two_lines_does_not_tear_the_record_apart():
    text = (DATA / "2205/job_array.txt").read_text().replace("Comment=plain", "Comment=two\nlines", 1)
    assert [info.comment for info in parse.jobs(text)] == ["two\nlines", "plain"]


def test_what_is_no_job_is_refused(recorded):
    with pytest.raises(SlurmError, match="not a job"):
        parse.jobs(recorded("job_unknown"))
    assert parse.jobs("") == []


def test_the_queue_one_member_a_line(recorded):
    found = {info.job_id: info for info in parse.queue(recorded("squeue"))}
    assert {"1", "2_1", "2_2", "2_3"} < set(found)
    running, waiting = found["1"], found["2_3"]
    assert (running.name, running.state, running.comment, running.reason) == (NAME, "RUNNING", COMMENT, "")
    assert running.batch_host == running.nodes[0]
    assert running.end_time - running.start_time == 600
    assert (waiting.state, waiting.reason, waiting.array, waiting.nodes, waiting.batch_host) == (
        "PENDING",
        "JobArrayTaskLimit",
        ("2", "3"),
        (),
        "",
    )
    (salloc,) = [info for info in found.values() if info.name == "sal loc"]
    assert salloc.batch_host == ""


def test_a_torn_line_of_the_queue_is_left_out(recorded):
    text = recorded("squeue")
    assert len(parse.queue(text + "9\x1fhalf\x1fRUN")) == len(parse.queue(text))


def test_steps_by_name(recorded):
    found = parse.steps(recorded("squeue_steps"))
    assert [(info.step, info.name) for info in found] == [("0", "0003-1a2b3c4d"), ("batch", "batch")]
    assert len(found[0].nodes) == 2
    assert parse.steps("14_1.0\x1fx\x1fn4\n") == [StepInfo("0", "x", ("n4",))]


def test_nodes(recorded):
    found = {node.name: node for node in parse.nodes(recorded("nodes"))}
    assert sorted(found) == ["n1", "n2", "n3", "n4"]
    sick, idle = found["n4"], found["n2"]
    assert (sick.states, sick.down) == ({"IDLE", "DRAIN"}, False)
    assert sick.reason.startswith("bad GPU: Xid 79, see #12 [root@")
    assert (idle.states, idle.reason, idle.cpus, idle.memory_bytes, idle.gres, idle.features) == ({"IDLE"}, "", 8, 16000 << 20, "gpu:4", ())


def test_a_dead_node(recorded):
    (node,) = parse.nodes(recorded("node_down"))
    assert (node.states, node.down) == ({"DOWN", "NOT_RESPONDING"}, True)
    assert node.reason.startswith("Not responding [root@")


def test_nodes_that_slurm_does_not_know_are_left_out(recorded):
    assert [node.name for node in parse.nodes(recorded("nodes_unknown"))] == ["n1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("IDLE", {"IDLE"}),
        ("DOWN*", {"DOWN", "NOT_RESPONDING"}),
        ("IDLE+CLOUD~", {"IDLE", "CLOUD", "POWERED_DOWN"}),
        ("MIXED-", {"MIXED", "PLANNED"}),
        ("ALLOCATED@+RESERVED", {"ALLOCATED", "REBOOT_REQUESTED", "RESERVED"}),
        ("", set()),
    ],
)
def test_the_marks_behind_a_nodes_state(text, words):
    assert parse.node_states(text) == words


def test_a_tree_names_the_leaf_of_each_node():
    text = (DATA / "2205/topology.txt").read_text()
    assert parse.places(text, ["n4", "n1", "x"]) == [NodePlace("n4", "leaf2"), NodePlace("n1", "leaf1"), NodePlace("x")]


def test_blocks_name_the_block_of_each_node():
    text = (DATA / "2411/topology.txt").read_text()
    assert parse.places(text, ["n3", "n2"]) == [NodePlace("n3", block="b2"), NodePlace("n2", block="b1")]


def test_the_configuration(recorded):
    said = parse.config(recorded("config"))
    assert (said["ClusterName"], said["SlurmdTimeout"], said["KillWait"], said["MaxArraySize"]) == ("devcluster", "10 sec", "5 sec", "11")
    assert said["PrologFlags" if "PrologFlags" in said else "Prolog"] == ""


@pytest.mark.parametrize(
    ("name", "state", "restarts", "code"),
    [("failed", "FAILED", 0, 7), ("a_cancelled", "CANCELLED", 0, 0), ("requeued", "NODE_FAIL", 1, 0), ("array_member", "CANCELLED", 0, 0)],
)
def test_the_newest_record_of_accounting(name, state, restarts, code):
    info = parse.accounted((DATA / f"2205/sacct_{name}.txt").read_text())
    assert (info.state, info.restarts, info.exit_code, info.ended) == (state, restarts, code, True)
    assert info.end_time >= info.start_time


def test_accounting_keeps_names_and_members():
    cancelled = parse.accounted((DATA / "2205/sacct_a_cancelled.txt").read_text())
    assert (cancelled.name, cancelled.comment, cancelled.nodes) == (NAME, COMMENT, ("n1", "n2"))
    assert parse.accounted((DATA / "2205/sacct_array_member.txt").read_text()).array == ("2", "1")
    assert parse.accounted((DATA / "2205/sacct_unknown.txt").read_text()) is None


@pytest.mark.parametrize(
    ("text", "job"),
    [("12\n", ("12", "")), ("12;lux\n", ("12", "lux")), ("sbatch: lua says hello\n12\n", ("12", "")), ("12;lux-2.a\n", ("12", "lux-2.a"))],
)
def test_what_sbatch_prints(text, job):
    assert parse.submitted(text) == job


@pytest.mark.parametrize("text", ["", "Submitted batch job 12", "12;", "x"])
def test_what_is_no_job_id(text):
    with pytest.raises(SlurmError, match="no job id"):
        parse.submitted(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1795960271", 1795960271.0), ("Unknown", None), ("N/A", None), ("NONE", None), ("soon", None), (None, None)]
)
def test_moments(text, seconds):
    assert parse.when(text) == seconds
