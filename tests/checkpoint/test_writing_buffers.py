"""Memory for chunks is kept from one file to the next, and what was in it never shows in a later file."""

from __future__ import annotations

import numpy as np
import pytest

from slurmtrain.boxes import whole
from slurmtrain.checkpoint import writing
from slurmtrain.checkpoint.layout import BoxSpec
from slurmtrain.checkpoint.skeleton import lay_out
from slurmtrain.store.verify import sums_of
from slurmtrain.syscalls import SYSTEM, SystemCalls


@pytest.fixture
def made(monkeypatch):
    """How often memory was asked of the system."""
    calls = []
    monkeypatch.setattr(writing, "mmap", lambda fd, size: calls.append(size) or bytearray(size))
    return calls


def file_of(path, size, value, buffers=None, *, calls=SYSTEM):
    layout = lay_out(path.name, [BoxSpec("t", (size,), whole((size,)), "uint8"), BoxSpec("odd", (3,), whole((3,)), "uint8")])
    boxes = [np.full(size, value, np.uint8), np.full(3, value + 1, np.uint8)]
    return layout, writing.write_file(calls, path, layout, boxes.__getitem__, buffers=buffers)


def test_later_files_take_the_memory_of_the_first(tmp_path, made):
    buffers, large = writing.Buffers(), 2 * writing.CHUNK_BYTES + 77
    for value, size in ((200, large), (10, 500), (90, large)):
        path = tmp_path / f"{value}.h5"
        layout, sums = file_of(path, size, value, buffers)
        data = np.fromfile(path, np.uint8)
        for spec, stored in zip(layout.specs, layout.stored, strict=True):
            expected = value if spec.name == "t" else value + 1
            assert (data[stored.at : stored.at + spec.nbytes] == expected).all()
        assert sums == sums_of(path)
    assert 0 < len(made) <= writing.BUFFERS
    _, alone = file_of(tmp_path / "alone.h5", large, 90)
    assert alone == sums, "with memory of its own the same bytes, gaps and all"


def test_a_file_that_fails_gives_its_memory_back(tmp_path, made):
    class Full(SystemCalls):
        def pwrite(self, fd, data, offset):
            raise OSError(28, "No space left on device")

    buffers = writing.Buffers()
    with pytest.raises(OSError, match="No space"):
        file_of(tmp_path / "a.h5", 2 * writing.CHUNK_BYTES, 5, buffers, calls=Full())
    before = len(made)
    _, sums = file_of(tmp_path / "b.h5", 1000, 6, buffers)
    assert len(made) == before
    assert sums == sums_of(tmp_path / "b.h5")
