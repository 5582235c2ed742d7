"""Files from rank to rank: the same bytes, durable, whatever their sizes; an end that fails leaves nobody waiting, and both say so."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from slurmtrain.checkpoint.peers import Into, Out, exchange, receive_value, send_value
from slurmtrain.store.verify import sums_of
from slurmtrain.syscalls import SYSTEM
from tests.checkpoint.group_conformance import PeerConformance
from tests.fakes.syscalls import FakeSyscalls, Refusal
from tests.fakes.thread_group import run_ranks

CHUNK = 1000


class TestThreadPeers(PeerConformance):
    size = 3

    def run(self, body):
        return run_ranks(self.size, body)


def make(path, size, seed=0):
    path.write_bytes(np.random.default_rng(seed).bytes(size))
    return sums_of(path, CHUNK)


def ring(tmp_path, sizes, calls=SYSTEM, disturb=lambda: None):
    """Each rank's file to the next rank, all at once; None: it has no file."""
    sums = {rank: make(tmp_path / f"from-{rank}", size, rank) for rank, size in enumerate(sizes) if size is not None}
    disturb()

    def body(group):
        to, source = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        out = Out(tmp_path / f"from-{group.rank}", sums[group.rank], to) if group.rank in sums else None
        into = Into(tmp_path / f"to-{group.rank}", sums[source], source) if source in sums else None
        return exchange(group, out, into, chunk_bytes=CHUNK, calls=calls)

    return run_ranks(len(sizes), body)


@pytest.mark.parametrize("sizes", [(5500, 5500), (0, 1, 999), (1000, 2000), (None, 7000, 10), (1001, None), (20 * CHUNK + 1, 3)])
def test_each_gets_the_bytes_of_the_one_before(tmp_path, sizes):
    for done in ring(tmp_path, sizes):
        assert (done.sent, done.received) == ("", "")
    for rank, size in enumerate(sizes):
        got = tmp_path / f"to-{(rank + 1) % len(sizes)}"
        assert got.exists() == (size is not None)
        if size is not None:
            assert got.read_bytes() == (tmp_path / f"from-{rank}").read_bytes()


def test_what_arrives_is_durable(tmp_path):
    calls = FakeSyscalls(tmp_path)
    ring(tmp_path, (2500, None), calls=calls)
    names = [name for name, path in calls.asked if path is not None and path.name == "to-1"]
    assert names.index("fsync") > max(i for i, name in enumerate(names) if name == "pwrite")


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", ["bit", "short", "gone"])
def test_a_damaged_file_is_told_at_both_ends_and_not_taken(tmp_path, harm):
    path = tmp_path / "from-0"

    def disturb():
        if harm == "bit":
            flip(path, 2300)
        elif harm == "short":
            os.truncate(path, 2300)
        else:
            path.unlink()

    first, second = ring(tmp_path, (5500, 3000), disturb=disturb)
    assert str(path) in first.sent
    assert "rank 0" in second.received
    assert (first.received, second.sent) == ("", ""), "the other way round it went well"
    assert not (tmp_path / "to-1").exists()
    assert (tmp_path / "to-0").exists()


@pytest.mark.parametrize("call", ["create", "pwrite", "fsync"])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, call):
    calls = FakeSyscalls(tmp_path, refusals=[Refusal(errno.ENOSPC, calls=(call,), path="to-1", times=None)])
    first, second = ring(tmp_path, (5500, 3000), calls=calls)
    assert (first.sent, first.received, second.sent) == ("", "", "")
    assert "No space left" in second.received
    assert not (tmp_path / "to-1").exists()


def test_values_go_from_rank_to_rank(tmp_path):
    def body(group):
        if group.rank == 0:
            send_value(group, {"a": b"x" * 10_000}, 1)()
            return None
        return receive_value(group, 0)

    assert run_ranks(2, body)[1] == {"a": b"x" * 10_000}
