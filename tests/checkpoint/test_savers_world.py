"""Ranks in processes of their own, torch tensors, gloo: all ways of saving give the same bytes, and the values at the call."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from slurmtrain.rundir import RunDir
from slurmtrain.store.verify import verify
from tests.mpi_world import gloo_group, run_world

RANKS, ROWS, COLUMNS = 4, 512, 2048
WAYS = {"sync": (False, 4), "sync, shared": (True, 2), "async": (False, 4), "async, shared": (True, 2)}


@cache
def weights(step):
    """Global tensors: one that lies in panels, narrow ones, small ones, a transposed one."""
    import torch

    made = torch.Generator().manual_seed(step)
    wide = torch.randn(RANKS * ROWS, COLUMNS, generator=made)
    return {"wide": wide, "narrow": wide[:, :700].bfloat16(), "small": wide[0, :60].half(), "turned": wide[:600, :800].t().contiguous().t()}


def entries_of(tensors, rank):
    """Rows of each tensor; the parts of local tensors with padding around them."""
    import torch

    from slurmtrain.boxes import Box, Part

    entries = []
    for name, whole in tensors.items():
        share = len(whole) // RANKS
        box = Box((rank * share, *[0] * (whole.ndim - 1)), (share, *whole.shape[1:]))
        rows = whole[rank * share : (rank + 1) * share]
        if name == "narrow":
            padded = torch.full((share + 3, 710), -5.0, dtype=whole.dtype)
            padded[1 : 1 + share, 4:704] = rows
            entries.append((Part(name, tuple(whole.shape), box, ((1, 1 + share), (4, 704))), padded))
        else:
            entries.append((Part(name, tuple(whole.shape), box, tuple((0, n) for n in box.shape)), rows.clone()))
    return entries


def rank_main(folder):
    import torch

    from slurmtrain.checkpoint import skeleton
    from slurmtrain.checkpoint.forkserver import start_forkserver

    skeleton.PANEL_BYTES = 1 << 18
    server = start_forkserver()
    torch.set_num_threads(1)
    world = gloo_group()
    from slurmtrain.checkpoint.group import SoloGroup
    from slurmtrain.checkpoint.saver import Header, Terms, shares
    from slurmtrain.checkpoint.staged import AsyncSaver
    from slurmtrain.checkpoint.state import TensorSource
    from slurmtrain.checkpoint.sync import SyncSaver
    from slurmtrain.store.retention import RetentionPolicy
    from slurmtrain.train.group import TorchGroup

    group = TorchGroup(60.0)
    said = {}
    for name, (shared, writers) in WAYS.items():
        ours = next(ranks for ranks in shares(RANKS, writers, 1) if world.rank in ranks)
        mates = TorchGroup(60.0, ours) if shared else SoloGroup()
        (Path(folder) / name).mkdir(exist_ok=True)
        terms = Terms(RunDir(Path(folder) / name), RetentionPolicy(3))
        saver = SyncSaver(terms, group, mates) if name.startswith("sync") else AsyncSaver(terms, group, mates, server=server)
        outcomes = []
        for step in (10, 20):
            entries = entries_of(weights(step), world.rank)
            outcome = saver.begin(Header(step, 1, 0, 5.0, {}, {}), TensorSource(entries))
            for _, tensor in entries:
                tensor.fill_(torch.nan)
            outcomes += [outcome] if outcome else []
        outcomes += saver.wait()
        said[name] = [(one.step, one.ok, one.bytes, one.notes, one.error) for one in outcomes]
        server = start_forkserver() if name.startswith("async") else server
        saver.close()
    server.close()
    return said


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    return folder, run_world(rank_main, str(folder), tasks_per_node=RANKS).results


@pytest.mark.mpi
def test_all_ranks_hear_the_same(saved):
    _, results = saved
    assert all(one == results[0] for one in results)
    assert set(results[0]) == set(WAYS)
    for outcomes in results[0].values():
        assert [(step, ok, notes, error) for step, ok, _, notes, error in outcomes] == [(10, True, (), ""), (20, True, (), "")]


@pytest.mark.mpi
@pytest.mark.parametrize("way", WAYS)
def test_what_is_stored_are_the_values_at_the_call(saved, way):
    import torch

    from slurmtrain.boxes import Part, whole
    from slurmtrain.checkpoint.state import load_checkpoint
    from slurmtrain.store.verify import read_manifest

    folder = RunDir(saved[0] / way).checkpoint(20)
    manifest = read_manifest(folder)
    assert verify(folder) == []
    expected = weights(20)
    assert set(manifest.tensors) == set(expected)
    assert any(one.panel for one in manifest.tensors["wide"].boxes)
    assert len(manifest.files) == WAYS[way][1]
    for name, tensor in expected.items():
        shape = tuple(tensor.shape)
        back = torch.empty(shape, dtype=tensor.dtype)
        load_checkpoint(folder, manifest, [(Part(name, shape, whole(shape), tuple((0, n) for n in shape)), back)])
        assert torch.equal(back.view(torch.uint8), tensor.contiguous().view(torch.uint8)), name


@pytest.mark.mpi
@pytest.mark.parametrize("way, like", [("async", "sync"), ("async, shared", "sync, shared")])
def test_the_same_bytes(saved, way, like):
    here, there = (RunDir(saved[0] / name).checkpoint(10) for name in (way, like))
    assert sorted(path.name for path in here.iterdir()) == sorted(path.name for path in there.iterdir())
    for path in here.iterdir():
        assert path.read_bytes() == (there / path.name).read_bytes(), path.name
