"""history.jsonl: lines that are appended are read back; a torn line costs itself alone."""

from __future__ import annotations

import json

from slurmtrain.atomic import SystemDisk
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.history import add_act, read_acts


def test_acts_are_read_back_in_order_and_torn_lines_are_passed_over(tmp_path):
    run, disk = RunDir(tmp_path), SystemDisk()
    add_act(run, disk, 1.0, "submit", job_id="12", detail="2 nodes")
    with run.history_jsonl.open("a") as file:
        file.write('{"v":1,"t":2.0,"who"\n')
        file.writelines(f'{{"v":1,"t":{t},"who":"a","what":"submit"}}\n' for t in ("1e400", "NaN", "-1e99"))
    add_act(run, disk, 3.0, "cancel", job_id="12")
    acts = read_acts(run)
    assert [(a.t, a.what, a.job_id, a.detail) for a in acts] == [(1.0, "submit", "12", "2 nodes"), (3.0, "cancel", "12", "")]
    assert "@" in acts[0].who


def test_every_line_carries_the_version(tmp_path):
    run = RunDir(tmp_path)
    add_act(run, SystemDisk(), 1.0, "run")
    assert [json.loads(line)["v"] for line in run.history_jsonl.read_text().splitlines()] == [1]


def test_no_file_is_no_history(tmp_path):
    assert read_acts(RunDir(tmp_path)) == []
