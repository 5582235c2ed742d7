"""attempt.json and owner.json: what is written is read back, and files of newer releases or torn ones do no harm."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.resilience.records import (
    AttemptRecord,
    Outcome,
    Owner,
    close_attempt,
    differences,
    read_attempt,
    read_attempts,
    read_owner,
    write_attempt,
)
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.identity import read_attempt as rank_reads

RECORD = AttemptRecord(3, "12", 1, 100.0, ("n1", "n2"), ("n3",), 4, 8, "3.11.7", {"torch": "2.13.0"}, "0.1.0")


def test_an_attempt_is_read_back_by_the_supervisor_and_by_the_ranks(tmp_path):
    run = RunDir(tmp_path)
    run.attempt(3).create()
    write_attempt(run, SystemDisk(), RECORD)
    assert read_attempt(run, 3) == RECORD
    assert (rank_reads(run.attempt(3)).nodes, rank_reads(run.attempt(3)).tasks_per_node) == (("n1", "n2"), 4)
    closed = close_attempt(run, SystemDisk(), RECORD, Outcome("failed", "rank 3 code 7", 3, "n1", 57, 50, 120.0))
    assert read_attempt(run, 3) == closed
    raw = json.loads(run.attempt(3).attempt_json.read_text())
    assert (raw["v"], raw["outcome"]["kind"], raw["outcome"]["last_durable_step"]) == (1, "failed", 50)


def test_a_file_of_a_newer_release_is_read_and_one_that_is_not_whole_is_none(tmp_path):
    run = RunDir(tmp_path)
    for number in (1, 2, 3):
        run.attempt(number).create()
    run.attempt(1).attempt_json.write_text("{")
    raw = json.loads(RECORD.to_json()) | {"v": 2, "weather": "fair", "outcome": {"kind": "stopped", "cause": "x", "mood": "good"}}
    run.attempt(2).attempt_json.write_text(json.dumps(raw))
    assert [r.outcome.kind for r in read_attempts(run)] == ["stopped"]


@pytest.mark.parametrize("key", ["t_start", "t_checked", "tasks_per_node", "outcome"])
@pytest.mark.parametrize("value", ["x", -3, 1e300, float("nan")])
def test_numbers_that_nobody_can_reckon_with_make_a_record_none(tmp_path, key, value):
    """Broken: `goodput` fell over a record that somebody had written into."""
    run = RunDir(tmp_path)
    run.attempt(3).create()
    told = {"outcome": {"kind": "failed", "cause": "x", "t_end": value}} if key == "outcome" else {key: value}
    run.attempt(3).attempt_json.write_text(json.dumps(json.loads(RECORD.to_json()) | told))
    found = read_attempt(run, 3)
    assert found is None or (key, value) == ("tasks_per_node", 1e300)


def test_the_node_of_a_rank():
    assert [RECORD.node_of(rank) for rank in (0, 3, 4, 7, 8)] == ["n1", "n1", "n2", "n2", ""]


def test_an_owner_is_read_back(tmp_path):
    owner = Owner("12", 1, 3, "n1", 4242, 100.0)
    (tmp_path / "owner.json").write_bytes(owner.to_json())
    assert read_owner(tmp_path / "owner.json") == owner
    assert read_owner(tmp_path / "no.json") is None
    (tmp_path / "torn.json").write_text('{"job_id"')
    assert read_owner(tmp_path / "torn.json") is None
    for key, value in (("pid", "x"), ("restart_count", None), ("t", float("inf")), ("attempt", [])):
        (tmp_path / "odd.json").write_text(json.dumps(json.loads(owner.to_json()) | {key: value}))
        assert read_owner(tmp_path / "odd.json") is None
    assert str(owner) == "job 12, attempt 3, pid 4242 on n1"


def test_differences_name_what_changed_what_came_and_what_went():
    now = replace(RECORD, python="3.12.1", packages={"numpy": "2.0"})
    assert differences(RECORD, now) == ["numpy absent -> 2.0", "python 3.11.7 -> 3.12.1", "torch 2.13.0 -> absent"]
    assert differences(RECORD, RECORD) == []
    assert differences(None, RECORD) == []
