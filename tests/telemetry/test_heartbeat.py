"""Signs of life: read whole or not at all, while another process writes them as fast as it can."""

from __future__ import annotations

import multiprocessing
import os
import socket

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.telemetry.heartbeat import Beat, SharedHeart, SilentHeart, heartbeat_dir, open_heart, read_beat, read_beats
from tests.fakes.clock import FakeClock


def test_what_is_beaten_is_read(tmp_path):
    clock = FakeClock()
    began = clock.monotonic()
    heart = SharedHeart(tmp_path, 3, 2, clock)
    assert read_beats(tmp_path) == {3: Beat(3, 2, os.getpid(), "init", 0, began, began)}
    clock.sleep(5)
    heart.beat("step", step=7, work_s=0.25)
    clock.sleep(1)
    heart.enter()
    assert read_beat(heart.path) == Beat(3, 2, os.getpid(), "step", 7, began + 6, began + 5, 1, 0.25)
    with heart.at("save"):
        assert read_beat(heart.path).phase == "save"
    assert read_beat(heart.path).phase == "step"


def test_large_counts_do_not_run_into_each_other(tmp_path):
    heart = SharedHeart(tmp_path, 0, 1, FakeClock())
    heart._entered = 2**40 - 2
    heart.enter()
    heart.beat(step=2**40)
    beat = read_beat(heart.path)
    assert (beat.step, beat.entered) == (2**40, 2**40 - 1)


def test_what_is_no_heartbeat_is_none(tmp_path):
    heart = SharedHeart(tmp_path, 0, 1, FakeClock())
    good = heart.path.read_bytes()
    for bad in (b"", good[:100], bytes(128), good[:20] + b"\x01" + good[21:], b"x" * 4096):
        (tmp_path / "rank-00001").write_bytes(bad)
        assert read_beat(tmp_path / "rank-00001") is None
    (tmp_path / "other").write_bytes(good)
    assert list(read_beats(tmp_path)) == [0]
    assert read_beats(tmp_path / "nowhere") == {}


def _beat_on(folder, beats):
    heart = SharedHeart(folder, 0, 1, SystemClock())
    for step in range(beats):
        heart.beat("step" if step % 2 else "wait", step=step, work_s=float(step))


def test_a_reader_never_sees_half_of_a_sign(tmp_path):
    writer = multiprocessing.get_context("spawn").Process(target=_beat_on, args=(tmp_path, 200_000))
    writer.start()
    seen = []
    while writer.is_alive():
        beat = read_beat(tmp_path / "rank-00000")
        if beat is not None and beat.phase != "init":
            seen.append(beat)
    writer.join()
    assert len({beat.step for beat in seen}) > 100, "too few looks to prove anything"
    assert all(beat.work_s == beat.step and beat.phase == ("step" if beat.step % 2 else "wait") for beat in seen)


def test_emulated_nodes_and_attempts_have_folders_of_their_own(tmp_path):
    folders = {heartbeat_dir(tmp_path / run, attempt, node) for run in "ab" for attempt in (1, 2) for node in ("n1", "n2")}
    assert len(folders) == 8


@pytest.mark.parametrize(
    ("environ", "node", "rank"),
    [
        ({"SLURMTRAIN_NODE": "local-2", "SLURMD_NODENAME": "n1", "PMI_RANK": "3", "SLURM_PROCID": "0"}, "local-2", 3),
        ({"SLURMD_NODENAME": "n1", "SLURM_PROCID": "5"}, "n1", 5),
        ({}, socket.gethostname(), 0),
    ],
)
def test_a_rank_is_alive_before_anything_else_by_its_environment_alone(tmp_path, environ, node, rank):
    heart, why = open_heart(tmp_path / "run", 2, environ, FakeClock(), tmp_path / "memory")
    assert why == ""
    folder = heartbeat_dir(tmp_path / "run", 2, node, tmp_path / "memory")
    assert {r: (beat.phase, beat.pid) for r, beat in read_beats(folder).items()} == {rank: ("init", os.getpid())}
    heart.become(7)
    assert list(read_beats(folder)) == [7]
    heart.close()
    assert list(folder.iterdir()) == []


def test_a_node_without_memory_for_it_costs_a_note(tmp_path):
    (tmp_path / "file").write_text("")
    heart, why = open_heart(tmp_path / "run", 1, {}, FakeClock(), tmp_path / "file")
    assert isinstance(heart, SilentHeart)
    assert f"{tmp_path / 'file'} cannot be used" in why
    with heart.at("step"):
        heart.beat("step", step=1)
    heart.enter()
    heart.close()
