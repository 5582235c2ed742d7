"""Traces of the steps that were asked for, with the names of the phases; what fails is told, and trains on."""

from __future__ import annotations

import json

import pytest
import torch

from slurmtrain.train.phases import Phases
from slurmtrain.train.profile import Profiler

CPU = torch.device("cpu")


def train(profiler, steps):
    phases = Phases(CPU)
    for step in steps:
        profiler.before(step)
        with phases.at("forward_backward"):
            torch.ones(4, 4) @ torch.full((4, 4), float(step))
        with phases.at("optimizer"):
            torch.zeros(4).add_(1.0)
        profiler.after(step)
    return phases.take()


def named(path, name):
    return [event for event in json.loads(path.read_text())["traceEvents"] if event.get("name") == name]


@pytest.mark.parametrize(
    ("steps", "recorded"),
    [(range(1, 8), 3), (range(4, 8), 2), (range(1, 5), 2)],
    ids=["the whole range", "resumed inside it", "ended inside it"],
)
def test_the_steps_of_the_range_are_in_the_trace(tmp_path, steps, recorded):
    notes, path = [], tmp_path / "profile" / "0001" / "rank-00000.json"
    profiler = Profiler((3, 5), path, CPU, notes.append)
    train(profiler, steps)
    profiler.close()
    assert notes == []
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    for phase in ("phase: forward_backward", "phase: optimizer"):
        spans = named(path, phase)
        assert len(spans) == recorded, phase
        assert all(span["dur"] > 0 for span in spans)
    assert len(named(path, "aten::mm")) == recorded


def test_steps_outside_the_range_leave_nothing(tmp_path):
    profiler = Profiler((30, 50), tmp_path / "t.json", CPU, pytest.fail)
    train(profiler, range(1, 6))
    profiler.close()
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_cannot_be_written_is_a_note(tmp_path):
    (tmp_path / "file").write_text("")
    notes = []
    profiler = Profiler((1, 2), tmp_path / "file" / "rank.json", CPU, notes.append)
    train(profiler, range(1, 5))
    profiler.close()
    assert len(notes) == 1
    assert notes[0].startswith("the profile was not written: ")


def test_phases_are_timed_by_name(tmp_path):
    seconds = train(Profiler((9, 9), tmp_path / "t.json", CPU, pytest.fail), range(1, 3))
    assert set(seconds) == {"forward_backward", "optimizer"}
    assert all(value > 0 for value in seconds.values())
