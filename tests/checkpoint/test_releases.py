"""Checkpoints that earlier releases wrote are opened: those of format 2, kept as files. Format 1: `test_located.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slurmtrain.boxes import Part, whole
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.load import PartReader
from slurmtrain.store.verify import read_manifest, verify
from tests.checkpoint.releases.contents import FORMAT_2, content_2

FOLDER = Path(__file__).parent / "releases" / "format-2" / "step-00000040"


def test_it_verifies_and_says_what_it_said():
    assert verify(FOLDER) == []
    manifest = read_manifest(FOLDER)
    assert (manifest.step, manifest.attempt, manifest.tokens, manifest.t) == (40, 2, 320, 1764444444.5)
    assert (manifest.layout, manifest.state) == ({"world": 2}, {"v": 1, "position": 160})
    assert {name: (entry.shape, entry.dtype) for name, entry in manifest.tensors.items()} == {n: kind[:2] for n, kind in FORMAT_2.items()}
    assert [box.panel for box in manifest.tensors["model/w"].boxes] == [128, 128]
    assert [box.panel for box in manifest.tensors["model/tall"].boxes] == [0, 0]


@pytest.mark.parametrize("name", FORMAT_2)
def test_every_tensor_is_what_was_stored(name):
    shape, dtype, _ = FORMAT_2[name]
    target = np.zeros(shape, carrier(dtype))
    with PartReader(FOLDER, read_manifest(FOLDER)) as reader:
        reader.fill(Part(name, shape, whole(shape), tuple((0, n) for n in shape)), dtype, target)
    assert target.tobytes() == content_2(name).tobytes()
