"""Bytes that were changed anywhere in an index: read as something, or refused by DataError; no other error comes out."""

from __future__ import annotations

import random

import h5py
import numpy as np
import pytest

from slurmtrain.data.source import open_source
from slurmtrain.errors import DataError
from tests.data.token_files import write_folder, write_hdf5, write_pair

DOCUMENTS = [[1, 2, 3, 256], [4, 256], [5, 6, 7, 8, 256]]
ROUNDS = 150


def visit(path):
    """Everything that a run or a command asks of a source."""
    source = open_source(path, vocab=257)
    told = source.summary
    source.read(0, told.tokens)
    source.starts(0, told.tokens)
    for number in range(min(told.documents, 5)):
        source.bounds(number)
    if told.answers:
        source.answers(0, told.tokens)


def changed(data: bytes, dice: random.Random) -> bytes:
    if dice.random() < 0.3:
        return data[: dice.randrange(len(data))]
    bytes_ = bytearray(data)
    for _ in range(dice.choice((1, 4, 20))):
        bytes_[dice.randrange(len(bytes_))] = dice.randrange(256)
    return bytes(bytes_)


@pytest.mark.parametrize("file", ["f/index.json", "f/documents.bin", "p.idx", "h.h5"])
def test_damage_is_told_or_harmless(tmp_path, file):
    write_folder(tmp_path / "f", DOCUMENTS)
    write_pair(tmp_path / "p", DOCUMENTS)
    write_hdf5(tmp_path / "h.h5", DOCUMENTS)
    path = tmp_path / {"f/index.json": "f", "f/documents.bin": "f", "p.idx": "p", "h.h5": "h.h5"}[file]
    visit(path)
    whole, dice, refused = (tmp_path / file).read_bytes(), random.Random(7), 0
    for _ in range(ROUNDS):
        (tmp_path / file).write_bytes(changed(whole, dice))
        try:
            visit(path)
        except DataError as error:
            refused += 1
            assert str(path) in str(error)  # noqa: PT017 each of many
    assert refused > ROUNDS // 4


def test_documents_of_a_pair_that_begin_nowhere(tmp_path):
    write_pair(tmp_path / "p", DOCUMENTS)
    raw = bytearray((tmp_path / "p.idx").read_bytes())
    for sequence in (-5, 9):
        raw[-24:-16] = np.array(sequence, "<i8").tobytes()  # the second document of three
        (tmp_path / "p.idx").write_bytes(raw)
        with pytest.raises(DataError, match=r"p\.idx: damaged"):
            visit(tmp_path / "p")


@pytest.mark.parametrize("vocab", ["many", -3, [1, 2]])
def test_attributes_of_hdf5_that_say_nothing(tmp_path, vocab):
    with h5py.File(tmp_path / "h.h5", "w") as file:
        file["tokens"] = np.array([1, 2])
        file.attrs["vocab"] = vocab
    with pytest.raises(DataError, match=r"h\.h5"):
        visit(tmp_path / "h.h5")
