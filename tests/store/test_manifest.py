"""A manifest that was read is the one that was written; anything else is refused with the file's name."""

from __future__ import annotations

import json

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.boxes import Box
from slurmtrain.errors import CheckpointError, CorruptCheckpointError
from slurmtrain.store.manifest import FileSum, Manifest, StoredBox, TensorEntry

MANIFEST = Manifest(
    step=100,
    attempt=2,
    tokens=819200,
    layout={"world": 2, "order": ["tp", "dp"]},
    files={"rank-00000.h5": FileSum(9, ("00000000000000ff",)), "rank-00001.h5": FileSum(0, ())},
    tensors={
        "model/w": TensorEntry((4, 2), "bfloat16", (StoredBox(Box((0, 0), (4, 2)), "rank-00000.h5", "flat-bfloat16-0", 7),)),
        "model/s": TensorEntry((), "float32", (StoredBox(Box((), ()), "rank-00000.h5", "d000001"),)),
    },
    state={"position": 3, "lr": 0.25},
)


def sealed(raw: dict) -> bytes:
    """A manifest as the format describes it, made without the code under test."""
    body = json.dumps(raw, separators=(",", ":")).encode()
    return body[:-1] + b',"xxh3_64":"' + xxhash.xxh3_64(body).hexdigest().encode() + b'"}\n'


def raw(**changes) -> dict:
    box = {"file": "rank-00000.h5", "dataset": "d000001", "offset": [0, 0], "shape": [4, 2]}
    base = {
        "v": 1,
        "step": 5,
        "attempt": 1,
        "tokens": 6,
        "layout": {},
        "chunk_bytes": 8,
        "files": {"rank-00000.h5": {"size": 9, "xxh3_64": ["aa", "bb"]}},
        "tensors": {"model/w": {"shape": [4, 2], "dtype": "float32", "boxes": [box]}},
        "state": {},
    }
    return {**base, **changes}


def test_what_was_written_is_read_back():
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST


def test_the_format_on_disk_is_the_documented_one():
    read = Manifest.from_json(sealed(raw()))
    assert (read.step, read.tokens, read.chunk_bytes) == (5, 6, 8)
    assert read.files == {"rank-00000.h5": FileSum(9, ("aa", "bb"))}
    assert read.tensors["model/w"].boxes == (StoredBox(Box((0, 0), (4, 2)), "rank-00000.h5", "d000001", None),)
    assert json.loads(MANIFEST.to_json())["tensors"]["model/w"]["boxes"][0]["start"] == 7


@given(st.data())
def test_any_changed_bit_is_found(data):
    line = bytearray(MANIFEST.to_json())
    place = data.draw(st.integers(0, len(line) - 1))
    line[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CheckpointError, match=r"x/manifest\.json: "):
        Manifest.from_json(bytes(line), "x/manifest.json")


@pytest.mark.parametrize("length", [0, 1, 40, -1])
def test_a_truncated_manifest_is_found(length):
    with pytest.raises(CorruptCheckpointError):
        Manifest.from_json(MANIFEST.to_json()[:length])


def test_a_newer_version_says_so_and_is_not_called_corrupt():
    with pytest.raises(CheckpointError, match="format version 7; this release reads up to 1") as caught:
        Manifest.from_json(sealed(raw(v=7)))
    assert not isinstance(caught.value, CorruptCheckpointError)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"more": 1}, "more"),
        ({"step": -1}, "-1"),
        ({"step": True}, "True"),
        ({"step": 1.5}, "1.5"),
        ({"chunk_bytes": 0}, "0"),
        ({"layout": 3}, "manifest"),
        ({"files": {"../rank.h5": {"size": 1, "xxh3_64": ["aa"]}}}, "../rank.h5"),
        ({"files": {"a/b.h5": {"size": 1, "xxh3_64": ["aa"]}}}, "a/b.h5"),
        ({"files": {}}, "rank-00000.h5"),
        ({"files": {"rank-00000.h5": {"size": 1}}}, "xxh3_64"),
        ({"tensors": {"w": {"shape": [1], "dtype": 3, "boxes": []}}}, "text"),
        ({"tensors": {"w": {"shape": [-1], "dtype": "float32", "boxes": []}}}, "-1"),
        ({"v": 0}, "version 1"),
    ],
)
def test_what_the_format_does_not_allow_is_refused(changes, words):
    with pytest.raises(CorruptCheckpointError, match=words):
        Manifest.from_json(sealed(raw(**changes)))


def test_state_that_is_not_plain_json_is_refused_when_written():
    with pytest.raises(ValueError, match="JSON"):
        Manifest(1, 1, 1, {}, {}, {}, {"loss": float("nan")}).to_json()
