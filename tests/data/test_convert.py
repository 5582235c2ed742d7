"""What is written in a format is read by the format's description, and comes back the same over all of them."""

from __future__ import annotations

import errno
import itertools
import struct

import h5py
import numpy as np
import pytest

from slurmtrain.data.convert import convert
from slurmtrain.data.megatron import pair_index
from slurmtrain.data.source import open_source
from slurmtrain.data.tokens import TokenFolder
from slurmtrain.data.writing import About, Piece, store
from slurmtrain.errors import DataError, UserError
from tests.data.token_files import write_folder, write_hdf5, write_pair
from tests.fakes.disk import FakeDisk

DOCUMENTS = [[104, 105, 256], [256], [1, 2, 3, 4, 256]]
MARKS = [[0, 1, 1], [0], [0, 0, 1, 0, 1]]
NAMES = {"folder": "made", "megatron": "made", "hdf5": "made.h5"}


def contents(path):
    source = open_source(path, vocab=257)
    told = source.summary
    documents = [source.read(*_span(source.bounds(i))).tolist() for i in range(told.documents)]
    marks = [source.answers(*_span(source.bounds(i))).astype(int).tolist() for i in range(told.documents)] if told.answers else None
    return documents, marks


def _span(bounds):
    return bounds[0], bounds[1] - bounds[0]


@pytest.mark.parametrize("marks", [None, MARKS])
@pytest.mark.parametrize("first, then", list(itertools.product(NAMES, NAMES)))
def test_there_and_back(tmp_path, first, then, marks):
    start = write_folder(tmp_path / "start", DOCUMENTS, marks=marks)
    done = convert(start, tmp_path / f"one-{NAMES[first]}", first)
    assert (done.tokens, done.documents, done.unchanged) == (9, 3, False)
    assert contents(tmp_path / f"one-{NAMES[first]}") == (DOCUMENTS, marks)
    convert(tmp_path / f"one-{NAMES[first]}", tmp_path / f"two-{NAMES[then]}", then, vocab=257, eod=256)
    assert contents(tmp_path / f"two-{NAMES[then]}") == (DOCUMENTS, marks)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("marks", [None, MARKS])
def test_a_pair_is_written_as_megatron_writes_it(tmp_path, marks):
    convert(write_folder(tmp_path / "start", DOCUMENTS, marks=marks), tmp_path / "mine", "megatron")
    write_pair(tmp_path / "other", DOCUMENTS, marks=marks)
    for suffix in (".bin", ".idx", *((".answers.bin",) if marks else ())):
        assert (tmp_path / f"mine{suffix}").read_bytes() == (tmp_path / f"other{suffix}").read_bytes()
    assert marks or not (tmp_path / "mine.answers.bin").exists()


def test_a_folder_is_written_as_its_format_says(tmp_path):
    convert(write_folder(tmp_path / "start", DOCUMENTS, marks=MARKS), tmp_path / "mine", "folder")
    for name in ("tokens.bin", "documents.bin", "answers.bin"):
        assert (tmp_path / "mine" / name).read_bytes() == (tmp_path / "start" / name).read_bytes()
    assert TokenFolder.open(tmp_path / "mine").index == TokenFolder.open(tmp_path / "start").index
    assert TokenFolder.open(tmp_path / "mine").verify() == []


def test_an_hdf5_file_is_plain_and_can_be_mapped(tmp_path):
    convert(write_folder(tmp_path / "start", DOCUMENTS), tmp_path / "made.h5", "hdf5")
    with h5py.File(tmp_path / "made.h5") as file:
        assert file["tokens"][:].tolist() == [t for document in DOCUMENTS for t in document]
        assert file["tokens"].dtype == "<u2"
        assert file["tokens"].id.get_offset() is not None
        assert file["documents"][:].tolist() == [0, 3, 4, 9]
        assert (file.attrs["vocab"], file.attrs["eod"]) == (257, 256)


def test_wide_vocabularies_take_four_bytes(tmp_path):
    big = [[70_000, 5], [99_999]]
    start = write_folder(tmp_path / "start", big, "uint32", vocab=100_000, eod=5)
    for kind, name in NAMES.items():
        convert(start, tmp_path / f"x-{name}", kind)
        source = open_source(tmp_path / f"x-{name}", vocab=100_000)
        assert source.read(0, 3).tolist() == [70_000, 5, 99_999]
    assert struct.unpack_from("<B", (tmp_path / "x-made.idx").read_bytes(), 17) == (4,)


def test_documents_longer_than_a_sequence_may_be_are_several_sequences(tmp_path, monkeypatch):
    monkeypatch.setattr("slurmtrain.data.writing.MOST_IN_SEQUENCE", 2)
    convert(write_folder(tmp_path / "start", DOCUMENTS), tmp_path / "mine", "megatron")
    raw = (tmp_path / "mine.idx").read_bytes()
    assert struct.unpack_from("<6i", raw, 34) == (2, 1, 1, 2, 2, 1)
    assert contents(tmp_path / "mine")[0] == DOCUMENTS


def test_pointers_of_sizes_beyond_32_bits_are_sums_in_64():
    """Three sequences of 2^30 tokens of 2 bytes: the third begins at 2^32 bytes."""
    raw = b"".join(pair_index("<u2", np.full(3, 2**30, np.int32), np.arange(4)))
    assert struct.unpack_from("<3q", raw, 34 + 12) == (0, 2**31, 2**32)


def test_a_pair_needs_vocabulary_and_end_for_a_folder(tmp_path):
    pair = write_pair(tmp_path / "p", DOCUMENTS)
    with pytest.raises(UserError, match="give --vocab N and --eod NUMBER"):
        convert(pair, tmp_path / "out", "folder", vocab=257)
    with pytest.raises(UserError, match="--eod 300: is not below the vocabulary of 257"):
        convert(pair, tmp_path / "out", "folder", vocab=257, eod=300)
    with pytest.raises(UserError, match=r"--vocab 200: .* has a token 256: use 257 or more"):
        convert(pair, tmp_path / "out", "folder", vocab=200, eod=1)
    with pytest.raises(UserError, match="has a vocabulary of 257: use 257 or more"):
        convert(write_folder(tmp_path / "f", DOCUMENTS), tmp_path / "out", "megatron", vocab=100)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "p.bin", "p.idx"]


def test_tokens_in_no_document_are_told_and_not_lost(tmp_path):
    pair = write_pair(tmp_path / "p", DOCUMENTS)
    raw = bytearray((pair.parent / "p.idx").read_bytes())
    raw[-8:] = struct.pack("<q", 2)
    (tmp_path / "p.idx").write_bytes(raw)
    with pytest.raises(DataError, match="its documents run from token 0 to 4 of 9"):
        convert(pair, tmp_path / "out.h5", "hdf5")


@pytest.mark.parametrize("kind", ["megatron", "hdf5"])
def test_what_is_there_is_replaced_only_when_forced(tmp_path, kind):
    start, other = write_folder(tmp_path / "start", DOCUMENTS, marks=MARKS), write_folder(tmp_path / "other", [[7, 256]])
    out = tmp_path / NAMES[kind]
    convert(start, out, kind)
    with pytest.raises(UserError, match="is there already: choose another --out, or give --force"):
        convert(other, out, kind)
    assert contents(out) == (DOCUMENTS, MARKS)
    convert(other, out, kind, force=True)
    assert contents(out) == ([[7, 256]], None)


def test_converting_again_into_a_folder_changes_nothing(tmp_path):
    start = write_folder(tmp_path / "start", DOCUMENTS)
    convert(start, tmp_path / "made", "folder")
    assert convert(start, tmp_path / "made", "folder").unchanged


@pytest.mark.parametrize("kind", NAMES)
def test_what_fails_on_the_way_leaves_nothing(tmp_path, kind):
    def pieces():
        yield Piece(np.array([1, 2]), None, end=True)
        raise OSError(errno.EIO, "the disk is gone")

    with pytest.raises(DataError, match="the disk is gone"):
        store(pieces(), tmp_path / NAMES[kind], kind, About(257, 256))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_error(tmp_path):
    start = write_hdf5(tmp_path / "t.h5", DOCUMENTS)
    with pytest.raises(DataError, match="No space left on device"):
        convert(start, tmp_path / "made", "folder", disk=FakeDisk({"publish_dir": None}, errno.ENOSPC))
    assert [path.name for path in tmp_path.iterdir()] == ["t.h5"]
