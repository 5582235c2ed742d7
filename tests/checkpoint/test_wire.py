"""Messages between a rank and its writer: whole, in order, with descriptors; an end that is gone or stopped is an error soon."""

from __future__ import annotations

import os
import threading

import pytest

from slurmtrain.checkpoint import wire as wires
from slurmtrain.checkpoint.wire import Wire, pair


@pytest.fixture
def ends():
    ours, theirs = pair()
    other = Wire(theirs)
    yield ours, other
    ours.close()
    other.close()


def test_values_of_any_size_arrive_in_order(ends):
    ours, other = ends
    values = [{"a": (1, None)}, b"x" * 5_000_000, "", list(range(1000))]
    sender = threading.Thread(target=lambda: [ours.send(value) for value in values])
    sender.start()
    assert [other.receive(10.0) for _ in values] == [(value, []) for value in values]
    sender.join()


def test_descriptors_come_with_their_message(ends, tmp_path):
    ours, other = ends
    (tmp_path / "f").write_text("through")
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    ours.send("first")
    ours.send("second", [fd])
    os.close(fd)
    assert other.receive(1.0)[0] == "first"
    value, (got,) = other.receive(1.0)
    assert (value, os.read(got, 99)) == ("second", b"through")
    os.close(got)


def test_nothing_comes_and_the_wait_ends(ends):
    ours, _ = ends
    assert ours.receive(0.0) is None
    assert ours.receive(0.01) is None


def test_an_end_that_is_gone(ends):
    ours, other = ends
    other.send("last words")
    other.close()
    assert ours.receive(1.0) == ("last words", [])
    with pytest.raises(EOFError):
        ours.receive(1.0)
    with pytest.raises(OSError, match="Broken pipe"):
        ours.send("hello")


def test_an_end_that_reads_no_more(monkeypatch):
    monkeypatch.setattr(wires, "SEND_WITHIN_S", 0.1)
    ours, theirs = pair()
    with theirs, pytest.raises(OSError, match="timed out"):
        ours.send(b"x" * 50_000_000)
    ours.close()
