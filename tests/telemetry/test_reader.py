"""What is read is what was whole; files that grow, tear, shrink or are not there yet are no errors."""

from __future__ import annotations

import json

from slurmtrain.telemetry.reader import EventTail, read_events, steps


def line(step, attempt=1, t=0.0, kind="step", **more):
    return (json.dumps({"v": 1, "t": t, "attempt": attempt, "rank": 0, "kind": kind, "step": step, **more}) + "\n").encode()


def numbers(events):
    return [event.fields["step"] for event in events]


def test_files_are_merged_by_attempt_and_time(tmp_path):
    (tmp_path / "node-000.jsonl").write_bytes(line(1, t=10) + line(2, t=30) + line(1, attempt=2, t=5))
    (tmp_path / "node-001.jsonl").write_bytes(line(9, t=20))
    (tmp_path / "notes.txt").write_bytes(line(7))
    assert [(e.attempt, e.fields["step"]) for e in read_events(tmp_path)] == [(1, 1), (1, 9), (1, 2), (2, 1)]


def test_torn_foreign_and_newer_lines(tmp_path):
    foreign = [b"\n", b"not json\n", b"[1]\n", b'{"v":1}\n', b'{"v":1,"t":null,"attempt":1,"rank":0,"kind":"x"}\n', b"\xff\xfe\x00\n"]
    newer = b'{"v":9,"t":1,"attempt":1,"rank":0,"kind":"moon","phase":"full"}\n'
    (tmp_path / "node-000.jsonl").write_bytes(line(1) + b"".join(foreign) + newer + line(2) + line(3)[:-9])
    events = read_events(tmp_path)
    assert [event.kind for event in events] == ["step", "step", "moon"]
    assert numbers(events[:2]) == [1, 2]


def test_no_folder_is_no_events(tmp_path):
    assert read_events(tmp_path / "none") == []


def test_the_highest_attempt_wins_for_a_step(tmp_path):
    data = [
        line(1),
        line(2, loss=1.0),
        line(3, loss=1.5),
        line(2, attempt=2, loss=2.0),
        line(2, kind="eval", attempt=9),
        line(2, attempt=1, loss=9.0),
    ]
    (tmp_path / "node-000.jsonl").write_bytes(b"".join(data))
    best = steps(read_events(tmp_path))
    assert list(best) == [1, 2, 3]
    assert (best[2].attempt, best[2].fields["loss"]) == (2, 2.0)
    assert best[3].fields["loss"] == 1.5


def test_a_tail_gives_each_event_once_and_waits_for_the_newline(tmp_path):
    path = tmp_path / "node-000.jsonl"
    tail = EventTail(path)
    assert tail.poll() == [], "not there yet"
    whole = line(2)
    path.write_bytes(line(1) + whole[:20])
    assert numbers(tail.poll()) == [1]
    assert tail.poll() == []
    with open(path, "ab") as file:
        file.write(whole[20:])
        file.flush()
        assert numbers(tail.poll()) == [2]
        file.write(b"\ntorn by a dead attempt\n" + line(3))
        file.flush()
        assert numbers(tail.poll()) == [3]


def test_a_tail_starts_again_when_the_file_shrank_or_is_another(tmp_path):
    path = tmp_path / "node-000.jsonl"
    path.write_bytes(line(1) + line(2))
    tail = EventTail(path)
    assert numbers(tail.poll()) == [1, 2]
    path.write_bytes(line(7))
    assert numbers(tail.poll()) == [7]
    other = tmp_path / "other"
    other.write_bytes(line(8) + line(9))
    other.replace(path)
    assert numbers(tail.poll()) == [8, 9]
    path.unlink()
    assert tail.poll() == []
