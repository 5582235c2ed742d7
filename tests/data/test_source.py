"""The three formats answer alike for the same documents; what is damaged is one clear error."""

from __future__ import annotations

import struct
from pathlib import Path

import h5py
import numpy as np
import pytest

from slurmtrain.data.megatron import pair_index
from slurmtrain.data.source import open_source
from slurmtrain.data.summary import format_of, summarize
from slurmtrain.errors import DataError
from tests.data.token_files import write_folder, write_hdf5, write_pair

DOCUMENTS = [[104, 105, 256], [256], [], [1, 2, 3, 4, 256]]
MARKS = [[0, 1, 1], [0], [], [0, 0, 1, 0, 1]]


def folder(path, **options):
    return write_folder(path / "f", DOCUMENTS, **options)


def pair(path, **options):
    return write_pair(path / "p", DOCUMENTS, **options)


def hdf5(path, **options):
    return write_hdf5(path / "t.h5", DOCUMENTS, **options)


def packed(path, **options):
    return write_hdf5(path / "t.hdf5", DOCUMENTS, chunks=(2,), compression="gzip", **options)


def split(path, **options):
    return pair(path, split={0, 3}, **options)


def wide(path, **options):
    return pair(path, code=4, **options)


KINDS = [folder, pair, split, wide, hdf5, packed]


@pytest.mark.parametrize("make", KINDS)
def test_all_formats_tell_the_same(tmp_path, make):
    source = open_source(make(tmp_path, marks=MARKS), vocab=257)
    assert source.read(0, 9).tolist() == [104, 105, 256, 256, 1, 2, 3, 4, 256]
    assert source.read(2, 3).dtype == np.int64
    assert source.answers(0, 9).tolist() == [bool(mark) for marks in MARKS for mark in marks]
    assert [source.bounds(i) for i in range(4)] == [(0, 3), (3, 4), (4, 4), (4, 9)]
    told = source.summary
    assert (told.tokens, told.documents, told.answers) == (9, 4, True)
    assert (told.vocab, told.eod) == ((None, None) if make in {pair, split, wide} else (257, 256))
    assert told == summarize(told.path)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("begin", range(9))
@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_starts_of_documents_strictly_inside(tmp_path, make, begin, length):
    end = min(9, begin + length)
    assert open_source(make(tmp_path)).starts(begin, end).tolist() == [d for d in (3, 4) if begin < d < end]


@pytest.mark.parametrize("make", KINDS)
def test_the_sum_changes_with_the_tokens_and_not_with_the_place(tmp_path, make, monkeypatch):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    first, second = (summarize(make(tmp_path / name)).sum for name in ("a", "b"))
    assert first == second
    monkeypatch.setattr("tests.data.test_source.DOCUMENTS", [[1, 2], [3]])
    assert summarize(make(tmp_path / "c")).sum != first


@pytest.mark.parametrize("make", [pair, wide, hdf5, packed])
def test_a_token_beyond_the_vocabulary_is_found_when_it_is_read(tmp_path, make):
    path = make(tmp_path)
    if make in {hdf5, packed}:
        with h5py.File(path, "r+") as file:
            del file.attrs["vocab"]
    source = open_source(path, vocab=200)
    assert source.read(4, 4).tolist() == [1, 2, 3, 4]
    with pytest.raises(DataError, match="token 256 at position 2 is not below the vocabulary of 200"):
        source.read(0, 4)


def test_a_negative_token_is_found_when_it_is_read(tmp_path):
    source = open_source(write_pair(tmp_path / "p", [[1, -5, 2]], code=4), vocab=200)
    with pytest.raises(DataError, match="token -5 at position 1 is negative"):
        source.read(0, 3)


@pytest.mark.parametrize("name", ["p", "p.bin", "p.idx"])
def test_a_pair_is_named_by_its_prefix_or_either_file(tmp_path, name):
    pair(tmp_path)
    assert summarize(tmp_path / name).path == tmp_path / "p"


def test_nothing_there_says_how_to_build(tmp_path):
    with pytest.raises(
        DataError, match=r"none: no such folder, \.bin/\.idx pair or HDF5 file of tokens: build it by slurmtrain data build"
    ):
        format_of(tmp_path / "none")


def damaged(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


@pytest.mark.parametrize(
    "at, data, words",
    [
        (0, b"X", "not the index of a Megatron pair"),
        (9, struct.pack("<Q", 2), "version 2 of Megatron's index"),
        (17, b"\x07", "dtype code 7 is not of whole numbers"),
        (18, struct.pack("<Q", 5), "damaged: 122 bytes, 5 sequences"),
        (26, struct.pack("<Q", 0), "no document index"),
        (34 + 12, struct.pack("<i", 4), "damaged: its last sequence ends at byte 16, the .bin has 18"),
        (34 + 16 + 32 + 32, struct.pack("<q", 9), "documents run from sequence 0 to 9"),
    ],
)
def test_a_damaged_index_of_a_pair_is_refused(tmp_path, at, data, words):
    pair(tmp_path)
    damaged(tmp_path / "p.idx", at, data)
    with pytest.raises(DataError, match=words):
        open_source(tmp_path / "p")


def test_missing_and_short_files_of_a_pair_are_named(tmp_path):
    pair(tmp_path, marks=MARKS)
    (tmp_path / "p.answers.bin").write_bytes(b"1")
    with pytest.raises(DataError, match=r"p\.answers\.bin: 1 bytes, one for each of 9 tokens"):
        open_source(tmp_path / "p")
    (tmp_path / "p.answers.bin").unlink()
    damaged(tmp_path / "p.bin", 18, b"x")
    with pytest.raises(DataError, match=r"p\.bin: short: 19 bytes are no whole number of u2 tokens"):
        open_source(tmp_path / "p")
    (tmp_path / "p.bin").unlink()
    with pytest.raises(DataError, match=r"p\.bin: No such file"):
        open_source(tmp_path / "p")


def sparse_pair(folder: Path, starts: list[int], count: int, tokens: dict[int, list[int]]) -> Path:
    """A pair of uint16 tokens, nearly all of them a hole: documents at `starts`, some tokens at their places."""
    with open(folder / "p.bin", "wb") as file:
        for at, values in tokens.items():
            file.seek(at * 2)
            file.write(np.array(values, "<u2").tobytes())
        file.truncate(count * 2)
    sizes = np.diff([*starts, count]).astype(np.int32)
    (folder / "p.idx").write_bytes(b"".join(pair_index("<u2", sizes, np.arange(len(sizes) + 1))))
    return folder / "p"


def test_a_pair_beyond_two_to_the_31_bytes_and_tokens_is_right(tmp_path):
    """NVIDIA/Megatron-LM#1056, #1672: pointers of 32 bits run over at 2^31 bytes."""
    far = 2**31 + 500
    starts = [0, 2**30 + 7, 2**31 - 3, far, far + 100]
    path = sparse_pair(tmp_path, starts, far + 1000, {far: list(range(1, 101)), far + 999: [77]})
    raw = (tmp_path / "p.idx").read_bytes()
    assert struct.unpack_from("<5q", raw, 34 + 4 * 5) == tuple(2 * start for start in starts)
    source = open_source(path)
    assert source.bounds(3) == (far, far + 100)
    assert source.read(far - 2, 5).tolist() == [0, 0, 1, 2, 3]
    assert source.read(far + 999, 1).tolist() == [77]
    assert source.starts(far - 10, far + 200).tolist() == [far, far + 100]
    assert source.starts(2**31 - 4, 2**31).tolist() == [2**31 - 3]


def test_pointers_that_ran_over_32_bits_are_refused(tmp_path):
    far = 2**31 + 500
    path = sparse_pair(tmp_path, [0, 2**30 + 7, far], far + 10, {})
    pointers = np.array([0, 2 * (2**30 + 7), 2 * far]).astype(np.int32).astype("<i8")
    damaged(tmp_path / "p.idx", 34 + 4 * 3, pointers.tobytes())
    with pytest.raises(DataError, match="pointers that ran over 32 bits"):
        open_source(path)


def test_an_hdf5_file_beyond_two_to_the_31_tokens_is_right(tmp_path):
    far, count = 2**31 + 500, 2**31 + 1000
    with h5py.File(tmp_path / "t.h5", "w") as file:
        tokens = file.create_dataset("tokens", (count,), "<u2", chunks=(1 << 20,))
        tokens[far : far + 3] = [5, 6, 7]
        file["documents"] = np.array([0, far, count])
    source = open_source(tmp_path / "t.h5", vocab=257)
    assert source.read(far - 1, 4).tolist() == [0, 5, 6, 7]
    assert source.starts(far - 1, far + 1).tolist() == [far]


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda file: file.__delitem__("tokens"), "has no dataset 'tokens'"),
        (lambda file: file["documents"].__setitem__(4, 8), "'documents' does not run from 0 to 9 tokens"),
        (lambda file: file.__setitem__("answers", np.zeros(3, "u1")), "'answers' has 3 numbers, 'tokens' has 9"),
        (lambda file: file.__setitem__("answers", np.zeros(9)), "not an HDF5 file of tokens: /answers is not a row of whole numbers"),
    ],
)
def test_an_hdf5_file_that_contradicts_itself_is_refused(tmp_path, change, words):
    path = hdf5(tmp_path)
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(DataError, match=words):
        open_source(path)


def test_a_file_that_is_no_hdf5_is_refused(tmp_path):
    (tmp_path / "t.h5").write_bytes(b"text")
    with pytest.raises(DataError, match="not an HDF5 file of tokens"):
        open_source(tmp_path / "t.h5")
