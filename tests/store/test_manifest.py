"""A manifest that was read is the one that was written; anything else is refused with the file's name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.boxes import Box
from slurmtrain.errors import CheckpointError, CorruptCheckpointError
from slurmtrain.store.manifest import FileSum, Manifest, StoredBox, Sums, TensorEntry
from slurmtrain.store.verify import verify

FORMAT_1 = Path(__file__).parent.parent / "checkpoint" / "releases" / "format-1" / "step-00000040"
MANIFEST = Manifest(
    step=100,
    attempt=2,
    tokens=819200,
    layout={"world": 2, "order": ["tp", "dp"]},
    files={"rank-00000.h5": FileSum(9, ("00000000000000ff",)), "rank-00001.h5": FileSum(0, ())},
    tensors={
        "model/w": TensorEntry((4, 2), "bfloat16", (StoredBox(Box((0, 0), (4, 2)), "rank-00000.h5", "flat-bfloat16", 7, 14),)),
        "model/s": TensorEntry((), "float32", (StoredBox(Box((), ()), "rank-00000.h5", "model/s@", None, 30),)),
        "model/p": TensorEntry((2, 6), "float32", (StoredBox(Box((0, 0), (2, 6)), "rank-00000.h5", "model/p@0,0", None, 40, 3),)),
    },
    state={"position": 3, "lr": 0.25},
    t=1764444444.5,
)


def sealed(raw: dict) -> bytes:
    """A manifest as the format describes it, made without the code under test."""
    body = json.dumps(raw, separators=(",", ":")).encode()
    return body[:-1] + b',"xxh3_64":"' + xxhash.xxh3_64(body).hexdigest().encode() + b'"}\n'


BOX = [0, "model/w@0,0", None, 512, 0, [0, 0], [4, 2]]


def raw(**changes) -> dict:
    base = {
        "v": 2,
        "step": 5,
        "attempt": 1,
        "tokens": 6,
        "t": 12.5,
        "layout": {},
        "chunk_bytes": 8,
        "files": {"rank-00000.h5": [9, "00000000000000aa00000000000000bb"]},
        "tensors": {"model/w": ["float32", [4, 2], [BOX]]},
        "state": {},
    }
    return {**base, **changes}


def raw_1(**changes) -> dict:
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
    assert Manifest.from_json(MANIFEST.to_json()).to_json() == MANIFEST.to_json()


def test_the_format_on_disk_is_the_documented_one():
    read = Manifest.from_json(sealed(raw()))
    assert (read.step, read.attempt, read.tokens, read.chunk_bytes, read.t) == (5, 1, 6, 8, 12.5)
    assert read.files == {"rank-00000.h5": FileSum(9, ("00000000000000aa", "00000000000000bb"))}
    assert dict(read.tensors) == {
        "model/w": TensorEntry((4, 2), "float32", (StoredBox(Box((0, 0), (4, 2)), "rank-00000.h5", "model/w@0,0", None, 512, 0),))
    }
    written = json.loads(MANIFEST.to_json())
    assert list(written) == ["v", "step", "attempt", "tokens", "t", "layout", "chunk_bytes", "files", "tensors", "state", "xxh3_64"]
    assert written["files"] == {"rank-00000.h5": [9, "00000000000000ff"], "rank-00001.h5": [0, ""]}
    assert written["tensors"]["model/w"] == ["bfloat16", [4, 2], [[0, "flat-bfloat16", 7, 14, 0, [0, 0], [4, 2]]]]
    assert written["tensors"]["model/s"] == ["float32", [], [[0, "model/s@", None, 30, 0, [], []]]]
    assert written["tensors"]["model/p"][2][0][4] == 3
    assert MANIFEST.to_json().count(b"\n") == 1


def test_version_1_is_read():
    read = Manifest.from_json(sealed(raw_1()))
    assert (read.step, read.tokens, read.t, read.files["rank-00000.h5"]) == (5, 6, 0.0, FileSum(9, ("aa", "bb")))
    assert read.tensors["model/w"].boxes == (StoredBox(Box((0, 0), (4, 2)), "rank-00000.h5", "d000001", None, None),)


def test_a_checkpoint_of_the_first_release_is_read_and_verifies():
    assert verify(FORMAT_1) == []
    read = Manifest.from_json((FORMAT_1 / "manifest.json").read_bytes())
    assert (read.step, read.attempt, read.tokens, read.state["position"]) == (40, 2, 320, 160)
    shapes = {name: (read.tensors[name].shape, read.tensors[name].dtype) for name in read.tensors}
    assert shapes["model/w"] == ((840, 640), "float32")
    assert shapes["model/f8"] == ((16, 8), "float8_e4m3fn")
    assert shapes["model/scale"] == ((), "float32")
    norm = read.tensors["model/norm"].boxes
    assert [(one.box.offset, one.file, one.start, one.at) for one in norm] == [
        ((0,), "rank-00000.h5", 0, None),
        ((300,), "rank-00001.h5", 0, None),
    ]


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


@pytest.mark.parametrize("junk", [b"[" * 100_000, b'{"v":2,"step":' + b"9" * 5000 + b"}", b"\xff\xfe", b"null", b'"text"', b"2\n"])
def test_junk_is_found(junk):
    with pytest.raises(CorruptCheckpointError, match=r"manifest\.json: "):
        Manifest.from_json(junk)


def test_a_newer_version_says_so_and_is_not_called_corrupt():
    with pytest.raises(CheckpointError, match="format version 7; this release reads up to 2") as caught:
        Manifest.from_json(sealed(raw(v=7)))
    assert not isinstance(caught.value, CorruptCheckpointError)


@pytest.mark.parametrize("form", [raw, raw_1])
@pytest.mark.parametrize(
    "changes, words",
    [
        ({"more": 1}, "more"),
        ({"step": -1}, "-1"),
        ({"step": True}, "True"),
        ({"step": 1.5}, "1.5"),
        ({"chunk_bytes": 0}, "0"),
        ({"chunk_bytes": (1 << 30) + 1}, "1073741825"),
        ({"step": 1 << 63}, "9223372036854775808"),
        ({"layout": 3}, "layout"),
        ({"layout": []}, "layout"),
        ({"state": []}, "state"),
        ({"tensors": []}, "tensors"),
        ({"files": []}, "files"),
        ({"files": {"rank-00000.h5": {"size": 1}}}, "manifest"),
        ({"files": {"rank-00000.h5": [1, "00"]}}, "manifest"),
        ({"files": {"rank-00000.h5": [1, 5]}}, "manifest"),
        ({"files": {"rank-00000.h5": [1]}}, "manifest"),
        ({"state": {"lr": float("nan")}}, "no JSON"),
        ({"v": 0}, "version 2"),
        ({"v": True}, "version 2"),
        ({"v": None}, "version 2"),
    ],
)
def test_what_the_format_does_not_allow_is_refused(changes, words, form):
    with pytest.raises(CorruptCheckpointError, match=words):
        Manifest.from_json(sealed(form(**changes)))


@pytest.mark.parametrize("name", ["../rank.h5", "a/b.h5", "", ".hidden", "manifest.json", "x\n", "x" * 201])
def test_names_of_files_stay_inside_the_folder(name):
    with pytest.raises(CorruptCheckpointError, match="not the name of a file"):
        Manifest.from_json(sealed(raw(files={name: [1, "0" * 16]}, tensors={})))
    with pytest.raises(CorruptCheckpointError, match="not the name of a file"):
        Manifest.from_json(sealed(raw_1(files={name: {"size": 1, "xxh3_64": ["0"]}}, tensors={})))


@pytest.mark.parametrize("v, times", [(2, [None, "now", -1, True, 1e999, 1e12])])
def test_a_time_is_a_number_of_seconds(v, times):
    for t in times:
        with pytest.raises(CorruptCheckpointError):
            Manifest.from_json(sealed(raw(v=v, t=t)))


def with_box(**at) -> dict:
    """The one box with some of its seven values changed, by position."""
    return raw(tensors={"model/w": ["float32", [4, 2], [[at.get(f"i{i}", value) for i, value in enumerate(BOX)]]]})


@pytest.mark.parametrize(
    "wrong, words",
    [
        (with_box(i0=1), "file 1 of 1"),
        (with_box(i0=-1), "-1"),
        (with_box(i0="0"), "'0'"),
        (with_box(i1=None), "text"),
        (with_box(i2=-1), "-1"),
        (with_box(i3=None), "None"),
        (with_box(i3=-1), "-1"),
        (with_box(i3=0.5), "0.5"),
        (with_box(i3=1 << 63), "9223372036854775808"),
        (with_box(i6=[1 << 63, 2]), "9223372036854775808"),
        (with_box(i1="a\nb"), "not a name"),
        (with_box(i4=3), "panels of 3 columns"),
        (with_box(i4=-1), "-1"),
        (with_box(i5=[0]), "AssertionError"),
        (with_box(i5=[0, -1]), "-1"),
        (with_box(i5=[0, True]), "True"),
        (with_box(i5=3), "TypeError"),
        (with_box(i6=["a", 2]), "'a'"),
        (raw(tensors={"model/w": ["float32", [4, 2], [BOX[:6]]]}), "unpack"),
        (raw(tensors={"model/w": ["float32", [4, 2], [[*BOX, 1]]]}), "unpack"),
        (raw(tensors={"model/w": ["float32", [4, 2]]}), "unpack"),
        (raw(tensors={"model/w": ["float32", [-4, 2], [BOX]]}), "-4"),
        (raw(tensors={"model/w": ["float32", 4, [BOX]]}), "TypeError"),
        (raw(tensors={"model/w": [7, [4, 2], [BOX]]}), "text"),
        (raw(tensors={"model/w": ["float32\n", [4, 2], [BOX]]}), "not the name of a type"),
        (raw(tensors={"model/w": None}), "TypeError"),
        (raw(tensors={"model/w": {"dtype": "float32"}}), "ValueError"),
        (raw_1(tensors={"model/w": {"shape": [1], "dtype": 3, "boxes": []}}), "text"),
        (raw_1(tensors={"model/w": {"shape": [-1], "dtype": "float32", "boxes": []}}), "-1"),
        (raw_1(tensors={"model/w": []}), "TypeError"),
        (raw_1(files={}), "rank-00000.h5"),
    ],
)
def test_a_wrong_entry_is_told_by_name_when_it_is_looked_at(wrong, words):
    manifest = Manifest.from_json(sealed(wrong), "x/manifest.json")
    assert list(manifest.tensors) == ["model/w"]
    with pytest.raises(CorruptCheckpointError, match=rf"x/manifest\.json: model/w: not an entry of the index: .*{words}"):
        manifest.tensors["model/w"]


@pytest.mark.parametrize("name", ["", "a\nb", "a\0b", "\udc80", "x" * 1001, "\x1b[2J"])
def test_names_of_tensors_can_be_printed_in_a_line(name):
    with pytest.raises(CorruptCheckpointError, match=r"not a name|not JSON") as caught:
        Manifest.from_json(sealed(raw(tensors={name: ["float32", [4, 2], [BOX]]})))
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()
    with pytest.raises(ValueError, match="not a name"):
        replace(MANIFEST, tensors={name: MANIFEST.tensors["model/w"]}).to_json()


def test_text_is_unicode():
    for text in ("\U0001f600 \ud7a3", "\u00ed"):
        assert Manifest.from_json(replace(MANIFEST, state={text: [text]}).to_json()).state == {text: [text]}
    for state in ({"\ud83d": 1}, {"a": ["b\udc80"]}):
        with pytest.raises(CorruptCheckpointError, match="not JSON"):
            Manifest.from_json(replace(MANIFEST, state=state).to_json())
    line = replace(MANIFEST, state={"a": "\udc80"}).to_json().replace(b"\\udc80", b"\xed\xb2\x80")
    with pytest.raises(CorruptCheckpointError, match="not JSON"):
        Manifest.from_json(line)


def test_a_name_that_is_not_in_the_index_is_a_key_error():
    manifest = Manifest.from_json(MANIFEST.to_json())
    assert "model/none" not in manifest.tensors
    assert manifest.tensors.get("model/none") is None
    with pytest.raises(KeyError):
        manifest.tensors["model/none"]


@pytest.mark.parametrize("state", [{"loss": float("nan")}, {"loss": float("inf")}])
def test_state_that_is_not_plain_json_is_refused_when_written(state):
    with pytest.raises(ValueError, match="JSON"):
        replace(MANIFEST, state=state).to_json()
    with pytest.raises(TypeError):
        replace(MANIFEST, layout={"x": object()}).to_json()


@given(st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_sums_in_one_text_are_the_sequence_of_them(numbers):
    texts = tuple(f"{number:016x}" for number in numbers)
    sums = Sums("".join(texts))
    assert sums == texts
    assert tuple(sums) == texts
    assert [sums[i] for i in range(-len(texts), len(texts))] == list(texts * 2)
    assert sums[1:] == texts[1:]
    assert sums != (*texts, "0" * 16)
    assert FileSum(1, sums) == FileSum(1, texts)
    assert hash(FileSum(1, sums)) == hash(FileSum(1, texts))
    with pytest.raises(IndexError):
        sums[len(texts)]
