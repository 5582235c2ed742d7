"""`slurmtrain goodput`: from a run folder, with and without Slurm, running or over."""

from __future__ import annotations

import json

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.resilience.records import write_attempt
from tests.cli.desk import Desk, one_line_of
from tests.cli.ran import attempted, submitted, write_event
from tests.report.stories import ACTS, ATTEMPTS, EVENTS, SECOND


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def written(desk, *, finished=True):
    """The run of stories.py as a folder."""
    run, job_id = submitted(desk)
    run.history_jsonl.write_bytes(b"".join(one.to_line() for one in ACTS))
    for record in ATTEMPTS:
        run.attempt(record.attempt).create()
        write_attempt(run, SystemDisk(), record)
    for one in EVENTS:
        write_event(run, one)
    if finished:
        run.finished.write_text("{}")
    return run, job_id


def goodput(desk, *words):
    result = desk.type("goodput", *words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_one_object_whose_parts_add_up(desk):
    written(desk)
    told = json.loads(goodput(desk, "job", "--json"))
    assert told["v"] == 1
    assert (told["run"], told["state"]) == ("job", "FINISHED")
    assert (
        sum(told["parts_us"].values())
        == sum(told["detail_us"].values())
        == told["wall_us"]
        == told["end_us"] - told["begin_us"]
        == 380 * SECOND
    )
    assert sum(told["gpu_us"].values()) == told["billed_gpu_us"] == 2250 * SECOND
    assert told["ettr"] == pytest.approx(80 / 380)
    assert told["causes"]["rank_crash"] == {"ends": 1, "mttd_s": 2.0, "mttr_s": 40.0, "lost_us": 67 * SECOND, "lost_gpu_us": 536 * SECOND}
    assert told["notes"] == []


def test_the_table_tells_the_same(desk):
    written(desk)
    shown = goodput(desk, "job")
    rows = {line.split("  ")[0].strip(): line for line in shown.splitlines()}
    assert "00:03:00" in rows["queue"]
    assert "80.00 s" in rows["productive steps"]
    assert "21.1%" in rows["productive steps"]
    assert "37.00 s" in rows["re-done steps"]
    assert "0.1806" in rows["spares idle"], "650 GPU seconds"
    assert "0.6250" in rows["all"], "2250 GPU seconds"
    assert "21.1% with the queue, 40.0% without" in shown
    assert "scheduling 52.6% x runtime 40.0% x program (MFU) 42.5%" in shown
    assert rows["rank crash"].split()[2:] == ["1", "2.00", "s", "40.00", "s", "67.00", "s", "0.1489"]


def test_a_running_run_is_counted_up_to_now(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    desk.clock.advance(100)
    told = json.loads(goodput(desk, "job", "--json"))
    assert told["state"] == "RUNNING"
    assert told["end_us"] == round(desk.clock.time() * SECOND)
    assert told["notes"] == ["attempt 1: its start-up is not told by stages"] or told["notes"] == []


def test_where_slurm_does_not_answer_it_is_counted_up_to_the_newest_sign(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    newest = desk.clock.time() + 5
    desk.clock.advance(10_000)
    desk.slurm.down = True
    told = json.loads(goodput(desk, "job", "--json"))
    assert told["end_us"] == round(newest * SECOND)
    assert any("cannot be told from here" in note for note in told["notes"])


def test_a_run_that_nobody_has_submitted(desk):
    run, _ = submitted(desk)
    run.history_jsonl.unlink()
    assert "nothing to account for" in one_line_of(desk.type("goodput", "job"))


def test_a_run_that_waits(desk):
    submitted(desk, state="PENDING", reason="Priority")
    desk.clock.advance(50)
    told = json.loads(goodput(desk, "job", "--json"))
    assert told["detail_us"] == {"pending": 50 * SECOND}
