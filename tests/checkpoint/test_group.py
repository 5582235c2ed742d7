"""The group of one process and the threads of the tests keep the same contract."""

from __future__ import annotations

import errno

import h5py
import pytest

from slurmtrain.checkpoint.group import SoloGroup, reason_of
from slurmtrain.errors import CheckpointError
from tests.checkpoint.group_conformance import GroupConformance
from tests.fakes.thread_group import run_ranks


class TestSoloGroup(GroupConformance):
    size = 1

    def run(self, body):
        try:
            return [body(SoloGroup())]
        except Exception as error:  # noqa: BLE001 part of the contract of run
            return [error]


class TestThreadGroup(GroupConformance):
    size = 3

    def run(self, body):
        return run_ranks(self.size, body)


def test_reasons_are_one_line(tmp_path):
    assert reason_of(OSError(errno.ENOSPC, "x\ny", "/a/b")) == "No space left on device: /a/b"
    assert reason_of(CheckpointError("as it is")) == "as it is"
    assert reason_of(ValueError("two\nlines")) == "ValueError: two lines"
    with pytest.raises(FileNotFoundError) as caught:
        h5py.File(tmp_path / "none" / "x.h5", "w")
    assert reason_of(caught.value) == "No such file or directory"
