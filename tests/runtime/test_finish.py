"""How a rank's end is written down, without a world."""

from __future__ import annotations

import threading
import time

import pytest

from slurmtrain.errors import ConfigError, DataError, LaunchError, PlacementError
from slurmtrain.rundir import RunDir
from slurmtrain.runtime import finish
from slurmtrain.runtime.finish import guarded, launcher_rank, record_of
from slurmtrain.runtime.world import Standing
from slurmtrain.telemetry.exitfile import is_follower, read_exit_records

# Recorded: torch 2.13 + gloo on the loopback, a peer that was killed, and one that did not come within 4 s.
LOST = [
    "[/__w/pytorch/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:44732. This is typically",
    "[/__w/pytorch/pytorch/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:21399: Connection reset by peer.",
    "[/__w/pytorch/pytorch/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete",
    "NCCL error in: ProcessGroupNCCL.cpp:3384: remote process exited or network error, NCCL version 2.27.5\nncclRemoteError: ...",
    "NCCL communicator was aborted on rank 3.",
]


class DistNetworkError(RuntimeError):
    """As torch.distributed's: its whole text was "Broken pipe"."""


@pytest.mark.parametrize("words", LOST)
def test_what_a_survivor_says_is_marked(words):
    record = record_of(Standing(3, "n1", 9), RuntimeError(words))
    assert record.error.startswith("peer lost: RuntimeError: ")
    assert "\n" not in record.error
    assert is_follower(record.error)


def test_a_lost_store_is_marked():
    assert is_follower(record_of(Standing(3, "n1"), DistNetworkError("Broken pipe")).error)


def test_a_wrapped_loss_is_marked():
    wrapped = RuntimeError("1F1B: stage 1 failed")
    wrapped.__cause__ = RuntimeError(LOST[0])
    assert record_of(Standing(0, ""), wrapped).error == "peer lost: RuntimeError: 1F1B: stage 1 failed"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("token 9 is outside the vocabulary"),
        RuntimeError("CUDA out of memory"),
        ConnectionError("proxy.example: Connection reset by peer"),
        RuntimeError("ncclUnhandledCudaError: Call to CUDA function failed."),
        BrokenPipeError(32, "Broken pipe"),
    ],
)
def test_a_first_cause_is_not_marked(error):
    assert not is_follower(record_of(Standing(0, ""), error).error)


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (ConfigError("x"), "config", 78),
        (PlacementError("x"), "config", 78),
        (LaunchError("x"), "config", 78),
        (DataError("x"), "error", 1),
        (KeyboardInterrupt(), "error", 1),
        (SystemExit(3), "error", 1),
    ],
)
def test_kind_and_code_follow_the_class(error, kind, code):
    record = record_of(Standing(2, "n1", 5), error)
    assert (record.rank, record.kind, record.code, record.step, record.node) == (2, kind, code, 5, "n1")


def test_a_normal_end_leaves_no_trace(tmp_path):
    run = RunDir(tmp_path)
    assert guarded(run, 1, lambda standing: 0, environ={}, exit_now=pytest.fail) == 0
    assert not list(tmp_path.iterdir())


def test_the_record_carries_what_the_loop_knew_last(tmp_path):
    codes: list[int] = []

    def train(standing: Standing) -> int:
        assert (standing.rank, standing.node) == (6, "n4")
        standing.rank, standing.step = 2, 41
        raise ZeroDivisionError("loss / tokens")

    run = RunDir(tmp_path)
    guarded(run, 3, train, environ={"PMI_RANK": "6", "SLURMTRAIN_NODE": "n4"}, exit_now=codes.append)
    record = read_exit_records(run.attempt(3).exit_dir)[2]
    assert (codes, record.step, record.error) == ([1], 41, "ZeroDivisionError: loss / tokens")
    assert "in train" in run.attempt(3).rank_log(2).read_text()


class BrokenDisk:
    """Every write fails, or hangs."""

    def __init__(self, *, hang: threading.Event | None = None) -> None:
        self.hang = hang

    def write(self, path, data):
        if self.hang is not None:
            self.hang.wait(20)
        raise OSError(28, "No space left on device")


def fails(standing: Standing) -> int:
    raise ValueError("first cause")


def test_a_full_disk_does_not_keep_the_rank(tmp_path, capfd):
    codes: list[int] = []
    guarded(RunDir(tmp_path), 1, fails, environ={}, disk=BrokenDisk(), exit_now=codes.append)
    assert codes == [1]
    assert "rank 0: ValueError: first cause" in capfd.readouterr().err


def test_a_hung_disk_does_not_keep_the_rank(tmp_path, monkeypatch):
    monkeypatch.setattr(finish, "LEAVE_WITHIN_S", 0.1)
    released = threading.Event()
    codes: list[int] = []

    def exit_now(code: int) -> None:
        codes.append(code)
        released.set()

    began = time.monotonic()
    guarded(RunDir(tmp_path), 1, fails, environ={}, disk=BrokenDisk(hang=released), exit_now=exit_now)
    assert time.monotonic() - began < 10
    assert codes[0] == 1


@pytest.mark.parametrize(
    ("environ", "rank"),
    [({"PMI_RANK": "3", "SLURM_PROCID": "0"}, 3), ({"SLURM_PROCID": "5"}, 5), ({"OMPI_COMM_WORLD_RANK": "2"}, 2), ({}, 0)],
)
def test_before_the_world_the_launchers_number_names_the_record(environ, rank):
    assert launcher_rank(environ) == rank


def test_a_loss_is_told_without_the_place_in_gloos_source_and_its_advice():
    words = "[/pytorch/third_party/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer. This is typically caused by a bug"
    assert record_of(Standing(3, "n1"), RuntimeError(words)).error == ("peer lost: RuntimeError: Read error: Connection reset by peer.")
