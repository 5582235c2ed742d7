"""Curves for TensorBoard and W&B: what they get, and that nothing they do reaches the training."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from slurmtrain.rundir import RunDir
from slurmtrain.train.tensorboard import TensorBoard
from slurmtrain.train.wandb import WeightsAndBiases
from slurmtrain.train.writers import Background

STEP = {"step": 3, "loss": 2.5, "grad_norm": "inf", "lr": 0.1, "previous": {"step": 2, "data_s": 0.5, "wait_s": {"tp": 0.25}}}


class Kept:
    def __init__(self, fails_at=None):
        self.written, self.closed, self.fails_at = [], False, fails_at

    def write(self, step, numbers):
        if step == self.fails_at:
            raise OSError("disk full")
        self.written.append((step, dict(numbers)))

    def close(self):
        self.closed = True


def test_numbers_arrive_in_order_each_under_its_step():
    kept, notes = Kept(), []
    writer = Background("kept", lambda: kept, notes.append)
    writer.put("step", STEP)
    writer.put("eval", {"step": 3, "set": "held-out", "eval_loss": 2.0})
    writer.put("save", {"step": 3, "seconds": 1.0})
    writer.close(10)
    assert kept.written == [(2, {"time/data_s": 0.5, "wait/tp_s": 0.25}), (3, {"loss": 2.5, "lr": 0.1}), (3, {"eval/held-out": 2.0})]
    assert (kept.closed, notes) == (True, [])


@pytest.mark.parametrize("where", ["opening", "writing"])
def test_one_note_then_silence(where):
    def opened():
        if where == "opening":
            raise ModuleNotFoundError("No module named 'tensorboard'")
        return Kept(fails_at=3)

    notes = []
    writer = Background("tensorboard", opened, notes.append)
    for step in range(1, 6):
        writer.put("step", {"step": step, "loss": 1.0})
    writer.close(10)
    why = "ModuleNotFoundError: No module named 'tensorboard'" if where == "opening" else "OSError: disk full"
    assert notes == [f"tensorboard gets no more: {why}"]


def test_a_writer_that_hangs_holds_nobody_up():
    go, entered = threading.Event(), threading.Event()

    def hangs():
        entered.set()
        go.wait(60)
        return Kept()

    writer = Background("slow", hangs, lambda _: None)
    assert entered.wait(10)
    for step in range(20_000):
        writer.put("step", {"step": step, "loss": 1.0})
    writer.close(0.01)
    go.set()


def test_tensorboard_reads_the_numbers_back(tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    for first, steps in ((1, (1, 2, 3)), (3, (3, 4))):
        board = TensorBoard(tmp_path, first)
        for step in steps:
            board.write(step, {"loss": 10.0 * first + step, "eval/a": 0.5})
        board.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    events = [event for file in files for event in loader.EventFileLoader(str(file)).Load()]
    loss = sorted((e.step, v.tensor.float_val[0]) for e in events for v in e.summary.value if v.tag == "loss")
    assert loss == [(1, 11.0), (2, 12.0), (3, 13.0), (3, 33.0), (4, 34.0)]
    assert [e.step for e in events if e.HasField("session_log")] == [1, 3], "what an earlier attempt wrote from there on is purged"


@pytest.fixture
def service(monkeypatch):
    """A stand-in for the package; `calls`: what it was asked."""
    calls = []
    run = SimpleNamespace(
        define_metric=lambda *a, **k: calls.append(("define", a, k)),
        log=lambda numbers: calls.append(("log", numbers)),
        finish=lambda: calls.append(("finish",)),
    )
    package = ModuleType("wandb")
    package.Settings = lambda **words: words
    package.reachable = True

    def init(**words):
        calls.append(("init", words))
        if words["mode"] is None and not package.reachable:
            raise RuntimeError("api_key not configured (no-tty)")
        return run

    package.init = init
    monkeypatch.setitem(sys.modules, "wandb", package)
    package.calls = calls
    return package


def test_wandb_is_one_run_for_all_attempts(service, tmp_path):
    notes, run = [], RunDir(tmp_path / "my-run")
    for _ in range(2):
        written = WeightsAndBiases("project", run, {"a": 1}, notes.append)
        written.write(3, {"loss": 2.5})
        written.close()
    starts = [words for what, *rest in service.calls if what == "init" for words in rest]
    assert starts[0]["id"] == starts[1]["id"]
    assert {(s["project"], s["name"], s["resume"], s["mode"], s["settings"]["console"]) for s in starts} == {
        ("project", "my-run", "allow", None, "off")
    }
    assert service.calls.count(("log", {"step": 3, "loss": 2.5})) == 2
    assert service.calls[-1] == ("finish",)
    assert notes == []


def test_wandb_without_its_service_keeps_files(service, tmp_path):
    service.reachable, notes = False, []
    WeightsAndBiases("project", RunDir(tmp_path / "r"), {}, notes.append).write(1, {"loss": 1.0})
    assert [words["mode"] for what, *rest in service.calls if what == "init" for words in rest] == [None, "offline"]
    assert len(notes) == 1
    assert "`wandb sync` sends them later" in notes[0]
    assert "api_key not configured" in notes[0]
    assert service.calls[-1] == ("log", {"step": 1, "loss": 1.0})
