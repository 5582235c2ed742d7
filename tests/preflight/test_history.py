"""The history of preflights: what is written is read, one write for all nodes, and what is torn or foreign is passed over."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError
from slurmtrain.preflight.finding import Finding
from slurmtrain.preflight.history import Entry, append, entries, history_path, read_history, read_newest
from tests.fakes.disk import FakeDisk

ECC = Finding("n2", "gpu-ecc", "fail", "2 uncorrectable errors", "have it replaced", "GPU 3")
LINE = {"v": 1, "t": 100.0, "node": "n1", "level": "quick", "ok": True, "by": "command", "site": "alps", "job_id": "33"}
WARM = Finding("n1", "gpu-temperature", "warn", "88 C", "look at its fans")


def some(t: float = 100.0) -> list[Entry]:
    figures = {"n1": {"matmul_tflops": 702.5}}
    about = {"by": "command", "site": "alps", "job_id": "33"}
    return entries(["n1", "n2"], [ECC, WARM], figures, t=t, level="quick", seconds=4.25, **about)


def test_a_line_for_each_node_in_one_write(tmp_path):
    disk, path = FakeDisk(), tmp_path / "preflight.jsonl"
    append(path, disk, some())
    assert disk.calls == [("append", path)]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [
        {
            **LINE,
            "seconds": 4.25,
            "findings": [{"check": "gpu-temperature", "grade": "warn", "said": "88 C", "remedy": "look at its fans"}],
            "figures": {"matmul_tflops": 702.5},
        },
        {
            **LINE,
            "node": "n2",
            "ok": False,
            "seconds": 4.25,
            "findings": [
                {"check": "gpu-ecc", "grade": "fail", "said": "2 uncorrectable errors", "remedy": "have it replaced", "item": "GPU 3"},
            ],
        },
    ]


def test_what_is_written_is_read_from_a_time_on(tmp_path):
    path = tmp_path / "preflight.jsonl"
    append(path, SystemDisk(), some(100.0))
    append(path, SystemDisk(), some(200.0))
    append(path, SystemDisk(), [])
    assert list(read_history(path)) == [*some(100.0), *some(200.0)]
    assert list(read_history(path, 150.0)) == read_newest(path)[2:] == some(200.0)


BAD = [
    b"[" * 100_000,
    b'{"v":1,"t":100.0,"node":"n1","level":"qu',
    b"[]",
    b"3",
    b"\xff\xfe",
    b'{"t":1.0,"node":"n1","level":"quick","ok":"yes"}',
    b'{"t":1.0,"node":"n1","level":"other","ok":true}',
    b'{"t":"nan","node":"n1","level":"quick","ok":true}',
    b'{"t":1.0,"level":"quick","ok":true}',
    b'{"t":1.0,"node":"n1","level":"quick","ok":true,"findings":[{"check":"x"}]}',
    b'{"t":1.0,"node":"n1","level":"quick","ok":true,"figures":[1]}',
]


@pytest.mark.parametrize("line", BAD)
def test_a_line_that_is_none_is_passed_over(tmp_path, line):
    path = tmp_path / "preflight.jsonl"
    path.write_bytes(line + b"\n" + some()[0].to_line())
    assert list(read_history(path)) == read_newest(path) == some()[:1]


def test_a_file_that_is_not_there_has_no_entries(tmp_path):
    assert list(read_history(tmp_path / "none")) == read_newest(tmp_path / "none") == []


@pytest.mark.parametrize("kind", ["endless", "pipe"])
def test_a_device_or_a_pipe_is_never_read_to_its_end(tmp_path, kind):
    path = tmp_path / "history"
    path.symlink_to("/dev/zero") if kind == "endless" else os.mkfifo(path)
    assert read_newest(path) == []
    with pytest.raises(OSError, match="not a regular file"):
        list(read_history(path))


def test_the_newest_part_of_a_long_file_begins_with_a_whole_line(tmp_path, monkeypatch):
    monkeypatch.setattr("slurmtrain.preflight.history.NEWEST_BYTES", 700)
    path = tmp_path / "preflight.jsonl"
    for t in range(10):
        append(path, SystemDisk(), some(float(t)))
    newest = read_newest(path)
    assert newest[-2:] == some(9.0)
    assert 2 <= len(newest) <= 4


def test_a_figure_that_is_no_number_is_left_out():
    assert "figures" not in json.loads(Entry(1.0, "n1", "full", ok=True, figures={"x": math.inf}).to_line())


def test_where_it_is():
    site = SiteConfig.model_validate({"name": "here", "node": {"gpus": 1}})
    assert history_path(site, Path("/runs"), {}) == Path("/runs/preflight.jsonl")
    assert history_path(site, None, {}) is None
    own = SiteConfig.model_validate({"name": "here", "node": {"gpus": 1}, "preflight": {"history": "$LOGS/p.jsonl"}})
    assert history_path(own, Path("/runs"), {"LOGS": "/var/log"}) == Path("/var/log/p.jsonl")
    with pytest.raises(ConfigError, match=r"preflight\.history.*\$LOGS is not set"):
        history_path(own, None, {})
