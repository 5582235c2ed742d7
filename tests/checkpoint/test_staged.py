"""Saving while training goes on: the same bytes, the values of the moment of the call, and one save after another."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from torch.torch_version import TorchVersion

from slurmtrain.boxes import Box
from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.saver import ArraySource, Header, Piece
from slurmtrain.checkpoint.staged import AsyncSaver
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_verified, steps_present
from slurmtrain.store.verify import verify
from tests.checkpoint.arrays import begin, header, pieces, save_step, source, terms, wrong_tensors
from tests.checkpoint.doors import held_door, noting_door, until
from tests.checkpoint.staging import end_servers, gone, names, savers, told, writer_pid


@pytest.fixture(autouse=True, scope="module")
def _servers():
    yield
    end_servers()


def saved(saver, group, step=10):
    """One save, waited for."""
    assert begin(saver, step, group) is None
    (outcome,) = saver.wait()
    return outcome


@pytest.mark.parametrize("size, sizes", [(1, ()), (3, ()), (4, (2, 2)), (4, (4,)), (3, (1, 2))])
def test_the_same_bytes_as_a_synchronous_save(tmp_path, size, sizes):
    from slurmtrain.checkpoint.sync import SyncSaver
    from tests.fakes.thread_group import run_ranks

    run, other = RunDir(tmp_path / "async"), RunDir(tmp_path / "sync")
    run.path.mkdir()
    other.path.mkdir()
    outcomes = savers(run, size, saved, sizes=sizes)
    assert len({(one.ok, one.bytes, one.error) for one in outcomes}) == 1

    def sync(group):
        return begin(SyncSaver(terms(other), group, group.part(sizes) if sizes else None), 10, group)

    assert run_ranks(size, sync)[0].bytes == outcomes[0].bytes > 2_000_000
    here, there = run.checkpoint(10), other.checkpoint(10)
    assert sorted(p.name for p in here.iterdir()) == sorted(p.name for p in there.iterdir())
    for path in here.iterdir():
        assert path.read_bytes() == (there / path.name).read_bytes(), path.name
    assert wrong_tensors(newest_verified(run.checkpoints)) == []
    assert names(run) == ["step-00000010"]


def test_what_is_stored_is_what_the_values_were_at_the_call(tmp_path):
    """Case 58: tensors that change as soon as the call has come back, and before a byte is written."""
    run, gate = RunDir(tmp_path), tmp_path / "gate"

    def body(saver, group):
        what = source(10, group.rank, group.size)
        assert saver.begin(header(10, 2), what) is None
        for piece in what._pieces:
            piece.array[...] = -1.0
        assert names(run) != ["step-00000010"]
        gate.touch()
        return saver.wait()[0].ok

    assert savers(run, 2, body, door=held_door(gate)) == [True, True]
    assert wrong_tensors(newest_verified(run.checkpoints)) == []


def test_a_save_waits_for_the_one_before(tmp_path):
    run, gate, order = RunDir(tmp_path), tmp_path / "gate", []

    def body(saver, group):
        begin(saver, 10, group)
        if group.rank == 0:
            until(gate.with_suffix(".here").exists)
            timer = threading.Timer(0.3, lambda: (order.append("opened"), gate.touch()))
            timer.start()
        begin(saver, 20, group)
        order.append("begun")
        return [(one.step, one.ok) for one in saver.wait()]

    assert savers(run, 2, body, door={1: held_door(gate)}) == [[(10, True), (20, True)]] * 2
    assert order == ["opened", "begun", "begun"]
    assert [verify(run.checkpoint(step)) for step in steps_present(run.checkpoints)] == [[], []]
    assert wrong_tensors(newest_verified(run.checkpoints)) == []


def test_begin_comes_back_before_anything_is_written_and_poll_tells_the_end_once(tmp_path):
    run, gate = RunDir(tmp_path), tmp_path / "gate"

    def body(saver, group):
        saver.prepare(source(0, group.rank, group.size))
        begin(saver, 10, group)
        group.barrier()
        assert saver.poll() == []
        group.barrier()
        gate.touch()
        if group.rank == 0:
            outcome = told(saver)
            assert (outcome.step, outcome.ok, outcome.error) == (10, True, "")
            assert 0 < outcome.stall_s < outcome.write_s
        return saver.poll(), saver.wait()

    assert savers(run, 2, body, door=held_door(gate)) == [([], []), ([], [])]


def test_twenty_saves_use_the_same_memory_and_the_same_writer(tmp_path):
    run = RunDir(tmp_path)

    def body(saver, group):
        saver.prepare(source(0, 0, 1))
        image, pid = saver._arranged.image, writer_pid(saver)
        steps = []
        for step in range(10, 210, 10):
            begin(saver, step, group)
            steps += [one.step for one in saver.wait()]
        assert (saver._arranged.image, writer_pid(saver)) == (image, pid)
        return steps

    assert savers(run, 1, body) == [list(range(10, 210, 10))]
    assert names(run) == ["step-00000190", "step-00000200"]
    assert wrong_tensors(newest_verified(run.checkpoints)) == []


@pytest.mark.parametrize("version", ["2.0", TorchVersion("2.0")], ids=lambda one: type(one).__name__)
def test_the_writer_loads_neither_torch_nor_mpi_nor_hdf5(tmp_path, version):
    run, note = RunDir(tmp_path), tmp_path / "modules"

    def body(saver, group):
        saver.begin(Header(10, 1, 80, 100.0, {}, {"versions": {"torch": version}}), source(10, 0, 1))
        return saver.wait()[0].ok

    assert savers(run, 1, body, door=noting_door(note)) == [True]
    loaded = set(json.loads(note.read_text()))
    assert {"numpy", "xxhash"} <= loaded
    assert not {name.partition(".")[0] for name in loaded} & {"torch", "mpi4py", "h5py"}


def test_writer_and_server_end_with_their_rank(tmp_path):
    saver = AsyncSaver(terms(RunDir(tmp_path)), SoloGroup())
    saver.prepare(source(0, 0, 1))
    pid, server = writer_pid(saver), saver._link._server._process
    assert not gone(pid)
    saver.close()
    assert server.returncode == 0
    until(lambda: gone(pid))


def test_boxes_that_change_are_laid_out_anew(tmp_path):
    run = RunDir(tmp_path)

    def body(saver, group):
        begin(saver, 10, group)
        late = [Piece("model/late", (700_000,), Box((0,), (700_000,)), "float32", np.arange(700_000, dtype=np.float32))]
        grown = ArraySource([*pieces(20, group.rank, group.size), *(late if group.rank == 1 else [])])
        assert saver.begin(header(20, 2), grown) is None
        begin(saver, 30, group)
        return [(one.step, one.ok) for one in saver.wait()]

    assert savers(run, 2, body, keep=9) == [[(10, True), (20, True), (30, True)]] * 2
    assert [verify(run.checkpoint(step)) for step in (10, 20, 30)] == [[]] * 3
    found = newest_verified(run.checkpoints)
    assert wrong_tensors(found) == []
    sizes = [(run.checkpoint(step) / "rank-00001.h5").stat().st_size for step in (10, 20, 30)]
    assert sizes[0] == sizes[2] < sizes[1] - 2_700_000


def test_a_step_that_is_there_is_said_and_nobody_waits_for_ever(tmp_path):
    run = RunDir(tmp_path)
    save_step(run, 10, SoloGroup())
    before = (run.checkpoint(10) / "manifest.json").read_bytes()

    def body(saver, group):
        begin(saver, 10, group)
        (outcome,) = saver.wait()
        begin(saver, 20, group)
        return outcome.ok, outcome.bytes, outcome.notes, [(one.step, one.ok) for one in saver.wait()]

    note = ("step 10 is there already and verifies",)
    assert savers(run, 3, body) == [(True, 0, note, [(20, True)])] * 3
    assert (run.checkpoint(10) / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("sizes", [(), (2,)])
def test_a_state_that_is_not_finite_is_not_saved_unless_asked(tmp_path, sizes):
    run = RunDir(tmp_path)

    def body(saver, group):
        what = pieces(10, group.rank, group.size)
        if group.rank == 1:
            what[1].array[-1] = np.nan
        assert saver.begin(header(10, 2), ArraySource(what)) is None
        outcomes = saver.wait()
        begin(saver, 20, group)
        return [(one.ok, one.error) for one in [*outcomes, *saver.wait()]]

    rank = 0 if sizes else 1
    refused = (False, f"checkpoint of step 10 not saved: rank {rank}: model/norm holds numbers that are not finite")
    assert savers(run, 2, body, sizes=sizes) == [[refused, (True, "")]] * 2
    assert names(run) == ["step-00000020"]
    assert savers(run, 2, body, sizes=sizes, allow_nonfinite=True)[0][0] == (True, "")
