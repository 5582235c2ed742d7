"""Writing a file from boxes that are made one by one: the disk sets the pace, not the memory."""

from __future__ import annotations

import threading

import numpy as np

from slurmtrain.boxes import whole
from slurmtrain.checkpoint import writing
from slurmtrain.checkpoint.skeleton import BoxSpec, lay_out
from slurmtrain.store.verify import sums_of
from slurmtrain.syscalls import SystemCalls

CHUNK = 64 << 10
BOXES = 8


class Stalled(SystemCalls):
    """A disk that stands still until all boxes were made, or nobody makes any more; `made` is noted when it goes on."""

    def __init__(self) -> None:
        self.all_made = threading.Event()
        self.made: list[int] = []
        self.made_meanwhile = 0

    def pwrite(self, fd, data, offset):
        if not self.made_meanwhile:
            self.all_made.wait(timeout=0.5)
            self.made_meanwhile = len(self.made)
        return super().pwrite(fd, data, offset)


def test_boxes_are_not_made_faster_than_the_disk_takes_them(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "CHUNK_BYTES", CHUNK)
    shape = (2 * writing.AHEAD * CHUNK // 4,)
    layout = lay_out("rank-00000.h5", [BoxSpec(f"t{i}", shape, whole(shape), "float32") for i in range(BOXES)])
    calls = Stalled()

    def fetch(index: int) -> np.ndarray:
        calls.made.append(index)
        if len(calls.made) == BOXES:
            calls.all_made.set()
        return np.full(shape, index, np.float32)

    sums = writing.write_file(calls, tmp_path / "rank-00000.h5", layout, fetch)
    assert calls.made == list(range(BOXES))
    assert calls.made_meanwhile == 1, "one box is more than may wait"
    assert sums == sums_of(tmp_path / "rank-00000.h5", CHUNK)
