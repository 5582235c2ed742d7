"""Whoever writes a file shows each element once to whoever looks for infinities, wherever chunks end."""

from __future__ import annotations

import numpy as np
import pytest

from slurmtrain.boxes import whole
from slurmtrain.checkpoint import skeleton, writing
from slurmtrain.checkpoint.layout import BoxSpec
from slurmtrain.checkpoint.skeleton import lay_out
from slurmtrain.syscalls import SYSTEM

SHAPES = {"wide": (256, 512), "turned": (300, 70), "long": (20_001,), "small": (3, 5), "scalar": (), "bytes": (7,)}


def arrays():
    numbers = np.arange(sum(int(np.prod(shape)) for shape in SHAPES.values()), dtype=np.float32)
    made, start = {}, 0
    for name, shape in SHAPES.items():
        size = int(np.prod(shape))
        made[name] = numbers[start : start + size].reshape(shape)
        start += size
    made["turned"] = np.ascontiguousarray(made["turned"].T).T
    made["bytes"] = made["bytes"].astype(np.uint8)
    return made


@pytest.mark.parametrize("chunk", [1000, 4096, 10_007, 1 << 20])
def test_each_element_is_seen_once(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(writing, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(skeleton, "SMALL_BYTES", 2048)
    monkeypatch.setattr(skeleton, "PANEL_BYTES", 1024)
    monkeypatch.setattr(skeleton, "PANEL_ROW_BYTES", 16)
    made = arrays()
    layout = lay_out("f.h5", [BoxSpec(name, one.shape, whole(one.shape), one.dtype.name) for name, one in made.items()])
    assert [name for name, stored in zip(made, layout.stored, strict=True) if stored.panel] == ["wide"]
    seen = {name: [] for name in made}

    def check(index, piece):
        seen[list(made)[index]].append(np.array(piece).reshape(-1))

    fetch = list(made.values()).__getitem__
    sums = writing.write_file(SYSTEM, tmp_path / "seen.h5", layout, fetch, check=check)
    for name, one in made.items():
        assert sorted(np.concatenate(seen[name]).tolist()) == sorted(one.reshape(-1).tolist()), name
    assert sums == writing.write_file(SYSTEM, tmp_path / "unseen.h5", layout, fetch)
    assert (tmp_path / "seen.h5").read_bytes() == (tmp_path / "unseen.h5").read_bytes()
    if chunk < 20_000:
        assert len(seen["long"]) > 5, "pieces are not larger than a chunk"


def test_what_the_looker_raises_ends_the_writing(tmp_path):
    made = arrays()
    layout = lay_out("f.h5", [BoxSpec(name, one.shape, whole(one.shape), one.dtype.name) for name, one in made.items()])

    def check(index, piece):
        if list(made)[index] == "small":
            raise KeyError("small")

    with pytest.raises(KeyError, match="small"):
        writing.write_file(SYSTEM, tmp_path / "f.h5", layout, list(made.values()).__getitem__, check=check)
