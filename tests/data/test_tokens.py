"""A folder of tokens is read as the format says; what is missing, short, damaged or too new is one clear error."""

from __future__ import annotations

import json

import numpy as np
import pytest

from slurmtrain.data.tokens import TokenFolder
from slurmtrain.errors import DataError
from tests.data.token_files import write_folder

DOCUMENTS = [[104, 105, 256], [256], [1, 2, 3, 4, 256]]


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "tokens", DOCUMENTS)


def test_tokens_and_documents_are_read(folder):
    tokens = TokenFolder.open(folder)
    assert (len(tokens), tokens.documents, tokens.vocab) == (9, 3, 257)
    assert [tokens.document(i).tolist() for i in range(3)] == DOCUMENTS
    assert tokens.read(2, 4).tolist() == [256, 256, 1, 2]
    assert tokens.read(0, 1).dtype == np.int64
    assert tokens.verify() == []


def test_wide_tokens_are_read(tmp_path):
    folder = write_folder(tmp_path, [[70_000, 5], [4_000_000_000]], "uint32", vocab=2**32 - 1, eod=5)
    assert TokenFolder.open(folder).read(0, 3).tolist() == [70_000, 5, 4_000_000_000]


@pytest.mark.parametrize("name", ["index.json", "tokens.bin", "documents.bin"])
def test_a_missing_file_is_named_with_the_remedy(folder, name):
    (folder / name).unlink()
    with pytest.raises(DataError, match=rf"{name}: No such file or directory: build the folder"):
        TokenFolder.open(folder)


def test_a_short_and_a_longer_file_are_named_with_both_sizes(folder):
    data = (folder / "tokens.bin").read_bytes()
    (folder / "tokens.bin").write_bytes(data[:-2])
    with pytest.raises(DataError, match=r"tokens\.bin: short: 16 bytes, 18 were written"):
        TokenFolder.open(folder)
    (folder / "tokens.bin").write_bytes(data + b"xx")
    with pytest.raises(DataError, match=r"tokens\.bin: damaged: 20 bytes, 18 were written"):
        TokenFolder.open(folder)


def test_a_flipped_bit_is_found_by_the_sums(folder):
    data = bytearray((folder / "tokens.bin").read_bytes())
    data[4] ^= 1
    (folder / "tokens.bin").write_bytes(data)
    assert TokenFolder.open(folder).verify() == [f"{folder}/tokens.bin: damaged: its sum differs"]


def test_a_token_beyond_the_vocabulary_is_found_when_it_is_read(tmp_path):
    tokens = TokenFolder.open(write_folder(tmp_path, [[1, 2, 300, 4]]))
    assert tokens.read(0, 2).tolist() == [1, 2]
    with pytest.raises(DataError, match="token 300 at position 2 is not below the vocabulary of 257"):
        tokens.read(1, 3)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"v": 3}, "format version 3; this release reads up to 2: use a newer slurmtrain"),
        ({"v": 2}, "damaged"),
        ({"v": None}, "damaged"),
        ({"dtype": "int7"}, "damaged"),
        ({"tokens": 10}, "damaged"),
        ({"tokens": "9"}, "damaged"),
        ({"documents": 4}, "damaged"),
        ({"eod": 257}, "damaged"),
        ({"eod": "x"}, "damaged"),
        ({"files": {}}, "damaged"),
        ({"files": 3}, "damaged"),
        ({"more": 3}, "damaged"),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(tmp_path, changes, words):
    with pytest.raises(DataError, match=rf"index\.json: {words}"):
        TokenFolder.open(write_folder(tmp_path, DOCUMENTS, changes=changes))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_an_index_that_is_no_json_object_is_refused(folder, content):
    (folder / "index.json").write_bytes(content)
    with pytest.raises(DataError, match=r"index\.json: damaged"):
        TokenFolder.open(folder)


def test_offsets_that_do_not_span_the_tokens_are_refused(folder):
    (folder / "documents.bin").write_bytes(np.array([0, 3, 4, 8], "<i8").tobytes())
    with pytest.raises(DataError, match=r"documents\.bin: damaged: does not run from 0 to 9 tokens"):
        TokenFolder.open(folder)
    (folder / "documents.bin").write_bytes(np.array([0, 300, 4, 9], "<i8").tobytes())
    with pytest.raises(DataError, match="document 0 runs from token 0 to 300"):
        TokenFolder.open(folder).document(0)


def test_offsets_beyond_two_to_the_31_are_right(tmp_path):
    """A sparse file of more than 2^31 tokens (and 2^32 bytes): 32-bit offsets would read zeros, or something else."""
    count, start = 2**31 + 1000, 2**31 + 500
    with open(tmp_path / "tokens.bin", "wb") as file:
        file.seek(start * 2)
        file.write(np.arange(1, 101, dtype="<u2").tobytes())
        file.truncate(count * 2)
    offsets = np.array([0, start, start + 100, count], "<i8").tobytes()
    (tmp_path / "documents.bin").write_bytes(offsets)
    files = {"tokens.bin": {"size": count * 2, "xxh3_64": "0" * 16}, "documents.bin": {"size": 32, "xxh3_64": "0" * 16}}
    index = {"v": 1, "dtype": "uint16", "tokens": count, "documents": 3, "vocab": 257, "eod": 256, "files": files}
    (tmp_path / "index.json").write_text(json.dumps(index))
    tokens = TokenFolder.open(tmp_path)
    assert tokens.document(1).tolist() == list(range(1, 101))
    assert tokens.read(start - 2, 4).tolist() == [0, 0, 1, 2]
    assert tokens.read(count - 1, 1).tolist() == [0]
