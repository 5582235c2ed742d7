"""Events reach the file in order; a disk that refuses, a torn line and a closed sink never reach training."""

from __future__ import annotations

import errno
import json
import threading
import time

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.clock import SystemClock
from slurmtrain.telemetry import sink as sink_module
from slurmtrain.telemetry.reader import read_events
from slurmtrain.telemetry.sink import EventSink
from tests.fakes.disk import FakeDisk


class HungDisk(SystemDisk):
    """A shared folder that does not answer until it is let go."""

    def __init__(self):
        super().__init__()
        self.go, self.reached = threading.Event(), threading.Event()

    def append(self, path, data):
        self.reached.set()
        self.go.wait(60)
        super().append(path, data)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events" / "node-000.jsonl"


def sink(path, **options):
    return EventSink(path, SystemClock(), attempt=2, rank=1, **options)


def test_events_are_lines_of_json_in_order(path):
    events = sink(path)
    for step in range(2500):
        events.emit("step", step=step, loss=1 / (step + 1))
    assert events.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(2500))
    assert {(line["v"], line["attempt"], line["rank"], line["kind"]) for line in lines} == {(1, 2, 1, "step")}
    assert abs(lines[0]["t"] - time.time()) < 100
    assert events.lost == 0


def test_nothing_starts_before_the_first_event(path):
    events = sink(path)
    assert "events" not in {thread.name for thread in threading.enumerate()}
    assert events.close()
    assert not path.exists()


def test_emitting_does_not_wait_for_a_disk_that_hangs_and_close_has_a_limit(path):
    disk = HungDisk()
    events = sink(path, disk=disk)
    start = time.monotonic()
    for step in range(1000):
        events.emit("step", step=step)
    assert disk.reached.wait(10)
    assert events.close(timeout_s=0.05) is False
    assert time.monotonic() - start < 5
    disk.go.set()


def test_a_queue_that_is_full_loses_events_and_says_so_once(path, monkeypatch):
    monkeypatch.setattr(sink_module, "QUEUE_LINES", 10)
    disk, said = HungDisk(), []
    events = sink(path, disk=disk, report=said.append)
    events.emit("step", step=0)
    assert disk.reached.wait(10)
    for step in range(50):
        events.emit("step", step=step)
    assert events.lost == 40
    disk.go.set()
    assert said == [f"slurmtrain: events are lost, training goes on: {path}: the disk does not keep up"]


@pytest.mark.parametrize("code, words", [(errno.ENOSPC, "No space left on device"), (errno.EROFS, "Read-only file system")])
def test_a_disk_that_refuses_is_counted_and_said_once(path, code, words):
    said = []
    events = sink(path, disk=FakeDisk({"append": None}, code), report=said.append)
    for step in range(20):
        events.emit("step", step=step)
    assert events.close()
    assert events.lost == 20
    assert said == [f"slurmtrain: events cannot be written just now, training goes on: {path}: {words}"]


def test_a_folder_that_cannot_be_made_is_counted(tmp_path):
    (tmp_path / "file").write_text("in the way")
    said = []
    events = sink(tmp_path / "file" / "node-000.jsonl", report=said.append)
    events.emit("step", step=1)
    assert events.close()
    assert (events.lost, len(said)) == (1, 1)


def test_what_was_refused_is_written_in_its_place_when_the_disk_has_room_again(path):
    refused = threading.Event()
    events = sink(path, disk=FakeDisk({"append": {1}}), report=lambda _: refused.set())
    events.emit("step", step=1)
    assert refused.wait(10)
    events.emit("step", step=2)
    assert events.close()
    assert [event.fields["step"] for event in read_events(path.parent)] == [1, 2]
    assert events.lost == 0


def test_events_wait_for_a_run_folder_that_is_gone_and_make_none(path, monkeypatch):
    monkeypatch.setattr(sink_module, "AGAIN_S", 0.01)
    run, away, refused = path.parent.parent / "run", path.parent.parent / "away", threading.Event()
    run.mkdir()
    events = sink(run / "events" / "node-000.jsonl", report=lambda _: refused.set())
    events.emit("step", step=1)
    while not (run / "events" / "node-000.jsonl").exists():
        time.sleep(0.001)
    run.rename(away)
    events.emit("step", step=2)
    assert refused.wait(10)
    assert not run.exists()
    away.rename(run)
    deadline = time.monotonic() + 10
    while len(list(read_events(run / "events"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [event.fields["step"] for event in read_events(run / "events")] == [1, 2], "without a further event"
    assert events.close()


def test_a_disk_that_refuses_is_not_asked_for_every_event(path):
    disk, refused = FakeDisk({"append": None}), threading.Event()
    events = sink(path, disk=disk, report=lambda _: refused.set())
    events.emit("step", step=0)
    assert refused.wait(10)
    for step in range(1, 50):
        events.emit("step", step=step)
        time.sleep(0.001)
    assert len(disk.calls) == 1, "the next try is a second later"
    assert events.close()
    assert len(disk.calls) == 2


def test_of_what_a_disk_goes_on_refusing_the_newest_lines_are_kept(path, monkeypatch):
    monkeypatch.setattr(sink_module, "QUEUE_LINES", 10)
    disk, refused = FakeDisk({"append": None}), threading.Event()
    events = sink(path, disk=disk, report=lambda _: refused.set())
    events.emit("step", step=0)
    assert refused.wait(10)
    for step in range(1, 15):
        while events._lines.full():
            time.sleep(0.001)
        events.emit("step", step=step)
    deadline = time.monotonic() + 10
    while events.lost < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    disk.faults.clear()
    assert events.close()
    assert [event.fields["step"] for event in read_events(path.parent)] == list(range(5, 15))


def test_a_log_on_the_same_full_disk_does_not_end_the_writing(path):
    asked = []

    def report(text):
        asked.append(text)
        raise OSError(errno.ENOSPC, "No space left on device")

    events = sink(path, disk=FakeDisk({"append": {1}}), report=report)
    events.emit("step", step=1)
    deadline = time.monotonic() + 10
    while not asked and time.monotonic() < deadline:
        time.sleep(0.001)
    events.emit("step", step=2)
    assert events.close()
    assert [event.fields["step"] for event in read_events(path.parent)] == [1, 2]
    assert len(asked) == 1


def test_a_line_that_a_dead_attempt_left_half_does_not_eat_the_next(path):
    path.parent.mkdir()
    path.write_bytes(b'{"v":1,"t":1.0,"attempt":1,"rank":0,"kind":"step","st')
    events = sink(path)
    events.emit("start", world=2)
    assert events.close()
    assert [(event.kind, event.attempt) for event in read_events(path.parent)] == [("start", 2)]


@pytest.mark.parametrize("value", [object(), {"deep": object()}])
def test_what_is_not_json_is_lost_and_nothing_is_raised(path, value):
    said = []
    events = sink(path, report=said.append)
    events.emit("step", value=value)
    events.emit("step", loss=float("nan"))
    assert events.close()
    assert events.lost == 1
    assert "not plain JSON" in said[0]
    assert [event.fields for event in read_events(path.parent)] == [{"loss": "nan"}]


def test_after_close_events_are_counted_as_lost(path):
    events = sink(path, report=lambda _: None)
    events.emit("finish", step=1)
    assert events.close()
    assert events.close()
    events.emit("finish", step=2)
    assert events.lost == 1


def test_a_number_that_json_cannot_say_travels_as_text_however_deep(path):
    events = sink(path)
    events.emit("step", loss=float("nan"), previous={"loss_max": float("inf"), "wait_s": {"tp": float("-inf"), "pp": 0.5}})
    assert events.close()
    (event,) = read_events(path.parent)
    assert event.fields == {"loss": "nan", "previous": {"loss_max": "inf", "wait_s": {"tp": "-inf", "pp": 0.5}}}
