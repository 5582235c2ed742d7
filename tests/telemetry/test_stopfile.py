"""The stop file and the exit files are read as they were written, and half a file never stops the reader."""

from __future__ import annotations

import pytest

from slurmtrain.telemetry.exitfile import ExitRecord, read_exit_records
from slurmtrain.telemetry.stopfile import read_stop, stop_bytes


def test_no_file_is_no_stop(tmp_path):
    assert read_stop(tmp_path / "stop") is None
    assert read_stop(tmp_path / "none" / "stop") is None


@pytest.mark.parametrize("reason", ["requeue", "stop", "interrupt"])
def test_reasons_survive(tmp_path, reason):
    (tmp_path / "stop").write_bytes(stop_bytes(reason))
    assert read_stop(tmp_path / "stop") == reason


def test_the_documented_content_is_read(tmp_path):
    (tmp_path / "stop").write_text('{"v":1,"reason":"requeue"}')
    assert read_stop(tmp_path / "stop") == "requeue"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"v":3}', '{"v":3,"reason":"eclipse"}', '{"v":1,"reason":["stop"]}', "3"])
def test_any_other_file_still_asks_to_stop(tmp_path, content):
    (tmp_path / "stop").write_text(content)
    assert read_stop(tmp_path / "stop") == "stop"


def test_exit_records_come_by_rank_and_torn_ones_count_as_none(tmp_path):
    record = ExitRecord(7, "error", 1, 57, "ValueError: no", "n2")
    (tmp_path / "rank-00007.json").write_bytes(record.to_json())
    (tmp_path / "rank-00008.json").write_bytes(record.to_json()[:-9])
    (tmp_path / "rank-00009.json").write_text('{"rank": 9, "unknown": 1}')
    assert read_exit_records(tmp_path) == {7: record}
    assert read_exit_records(tmp_path / "none") == {}
