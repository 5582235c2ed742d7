"""Writers' words: whole or not there, of the save that is meant, and the manifest that they make."""

from __future__ import annotations

import errno

import pytest

from slurmtrain.boxes import Box
from slurmtrain.checkpoint.reports import Refusal, Report, assemble, done_name, done_of, leave_word, names_in, read_word
from slurmtrain.checkpoint.saver import Header
from slurmtrain.errors import CheckpointError
from slurmtrain.store.manifest import FileSum, StoredBox, TensorEntry
from slurmtrain.syscalls import SYSTEM
from tests.fakes.syscalls import Cut, FakeSyscalls
from tests.fakes.syscalls import Refusal as Refused

SUMS = FileSum(20_000_000, ("0123456789abcdef", "fedcba9876543210", "00000000000000ff"))


def report(rank, kinds=None):
    name = f"rank-{rank:05d}.h5"
    boxes = [("w", StoredBox(Box((rank, 0), (1, 3)), name, "w@0", None, 4096, 0)), ("b", StoredBox(Box((), ()), name, "flat", 7, 96, 0))]
    return Report(rank, name, SUMS, kinds or {"w": ((2, 3), "float32"), "b": ((), "bfloat16"), "none": ((0, 4), "int8")}, boxes[: 2 - rank])


@pytest.mark.parametrize("word", [report(0), report(1), Refusal(7, 'disk "full"\u2026')])
def test_a_word_comes_back_as_it_was(tmp_path, word):
    leave_word(SYSTEM, tmp_path, 3, word)
    assert names_in(tmp_path) == [done_name(word.rank, 3)]
    assert read_word(tmp_path / done_name(word.rank, 3)) == word


def test_only_words_of_this_save_count():
    others = [done_name(0, 1), f".{done_name(5, 3)}.tmp", "go-0003", "rank-00003.h5", "manifest.json"]
    assert [done_of(name, 3) for name in others] == [None] * 5
    assert [done_of(done_name(rank, 3), 3) for rank in (12, 123_456)] == [12, 123_456]


@pytest.mark.parametrize("cut", [0, 1, 30, -2])
def test_a_word_that_is_not_whole_is_none_yet(tmp_path, cut):
    leave_word(SYSTEM, tmp_path, 3, report(0))
    path = tmp_path / done_name(0, 3)
    path.write_bytes(path.read_bytes()[:cut])
    assert read_word(path) is None


def test_a_writer_that_is_cut_leaves_no_half_word(tmp_path):
    for call in range(1, 5):
        with pytest.raises(Cut):
            leave_word(FakeSyscalls(tmp_path, cut_at=call, torn=True), tmp_path, call, report(0))
        assert [name for name in names_in(tmp_path) if done_of(name, call) is not None] == []
    with pytest.raises(OSError, match="No space"):
        leave_word(FakeSyscalls(tmp_path, refusals=[Refused(errno.ENOSPC)]), tmp_path, 9, report(0))


def test_a_folder_that_is_gone_is_empty(tmp_path):
    assert names_in(tmp_path / "gone") == []


def test_the_manifest_of_all_words():
    header = Header(40, 2, 99, 5.5, {"tp": 2}, {"lr": 1})
    made = assemble(header, [report(1), report(0)])
    assert (made.step, made.attempt, made.tokens, made.t, made.layout, made.state) == (40, 2, 99, 5.5, {"tp": 2}, {"lr": 1})
    assert list(made.files) == ["rank-00000.h5", "rank-00001.h5"]
    assert made.tensors["w"] == TensorEntry((2, 3), "float32", (report(0).boxes[0][1], report(1).boxes[0][1]))
    assert made.tensors["b"].boxes == (report(0).boxes[1][1],)
    assert made.tensors["none"] == TensorEntry((0, 4), "int8", ())
    with pytest.raises(CheckpointError, match=r"w: \(\(9, 3\), 'float32'\) on rank 1, \(\(2, 3\), 'float32'\) on a lower rank"):
        assemble(header, [report(0), report(1, {"w": ((9, 3), "float32")})])
