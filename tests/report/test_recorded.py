"""A real run that was recorded: two ranks under mpiexec, one of which left at step 8 of the first attempt (code 7), asynchronous saves
every 4 steps, an evaluation every 5. Its accounts against sums over the raw files.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from slurmtrain.report.folder import read_story
from slurmtrain.report.goodput import accounts
from slurmtrain.report.intervals import timeline
from slurmtrain.rundir import RunDir

RECORDED = Path(__file__).with_name("recorded")


def micro(seconds):
    return round(seconds * 1_000_000)


@pytest.fixture(scope="module")
def raw():
    return [json.loads(line) for line in (RECORDED / "events" / "node-000.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def records():
    return [json.loads((RECORDED / "attempts" / f"000{n}" / "attempt.json").read_text()) for n in (1, 2)]


@pytest.fixture(scope="module")
def told():
    return accounts(read_story(RunDir(RECORDED)))


def test_the_whole_is_from_the_persons_word_to_the_end(told, records):
    began = json.loads((RECORDED / "history.jsonl").read_text().splitlines()[0])["t"]
    assert told.wall_us == micro(records[1]["outcome"]["t_end"]) - micro(began)
    assert sum(told.parts_us.values()) == sum(told.detail_us.values()) == told.wall_us
    world = 2 * sum(micro(r["outcome"]["t_end"]) - micro(r["t_start"]) for r in records)
    between = 2 * (micro(records[1]["t_start"]) - micro(records[0]["outcome"]["t_end"]))
    assert told.billed_us == sum(told.gpu_us.values()) == world + between


def test_steps_and_evaluations_take_what_they_say(told, raw):
    steps = [(e["attempt"], e["step"], micro(e["step_s"])) for e in raw if e["kind"] == "step"]
    lost = [took for attempt, step, took in steps if attempt == 1 and step > 4]
    assert told.parts_us["productive"] == sum(took for _, _, took in steps) - sum(lost)
    assert (told.kept_steps, told.redone_steps) == (14, len(lost)) == (14, 3)
    assert told.parts_us["evaluation"] == pytest.approx(sum(micro(e["seconds"]) for e in raw if e["kind"] == "eval"), abs=2000)


def test_the_start_up_is_split_as_the_ranks_told_it(told, raw, records):
    for stage in ("python", "mpi", "group", "load"):
        assert told.detail_us[stage] == sum(micro(e["startup"][f"{stage}_s"]) for e in raw if e["kind"] == "start")
    checks = sum(micro(r["t_ranks"]) - micro(r["t_start"]) for r in records)
    assert told.detail_us["check"] == checks
    ups = {e["attempt"]: e["t"] for e in raw if e["kind"] == "start"}
    until_up = sum(micro(ups[r["attempt"]]) - micro(r["t_start"]) for r in records)
    first = {e["attempt"]: e["t"] - e["step_s"] for e in reversed(raw) if e["kind"] == "step"}
    building = sum(micro(first[n]) - micro(ups[n]) for n in (1, 2))
    assert told.parts_us["startup"] == pytest.approx(until_up + building, abs=4)


def test_the_fault_was_noticed_and_repaired(told, raw, records):
    fault, seen = (records[0]["outcome"][name] for name in ("fault_t", "seen_t"))
    crash = told.causes["rank_crash"]
    assert told.parts_us["detection"] == micro(seen) - micro(fault) == micro(crash.mttd_s)
    again = next(e["t"] for e in raw if e["kind"] == "step" and e["attempt"] == 2)
    assert crash.mttr_s == pytest.approx(again - fault, abs=1e-5)
    assert told.detail_us["restart"] == micro(records[1]["t_start"]) - micro(records[0]["outcome"]["t_end"])


def test_little_is_left_that_nobody_can_explain(told):
    assert told.detail_us["other"] / told.wall_us < 0.002
    assert told.notes == ()


@pytest.mark.parametrize("cut", range(0, 20_000, 1117))
def test_a_torn_file_never_keeps_the_parts_from_adding_up(tmp_path, cut):
    """Bytes are missing somewhere: what was told there is gone, and the whole stays what it was."""
    shutil.copytree(RECORDED, tmp_path / "run")
    path = tmp_path / "run" / "events" / "node-000.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[:cut] + data[cut + 1500 :])
    found, whole = list(timeline(read_story(RunDir(tmp_path / "run")))), accounts(read_story(RunDir(RECORDED)))
    assert sum(one.took for one in found) == whole.wall_us
