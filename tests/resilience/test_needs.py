"""What a run needs of its nodes: from the checkpoint that it has, else from its model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmtrain.config.entry import EntryConfig
from slurmtrain.resilience.composition import read_setup
from slurmtrain.resilience.needs import local_bytes, needs_of
from slurmtrain.store.manifest import FileSum, Manifest
from slurmtrain.store.space import Need
from tests.resilience.runs import MODEL, make_run


def parameters(layers, hidden, ffn, vocab, **_) -> int:
    """Of a llama with as many heads of keys as of queries, summed by hand: q, k, v, o; gate, up, down; two norms; embedding, head, norm."""
    return layers * (4 * hidden**2 + 3 * hidden * ffn + 2 * hidden) + 2 * vocab * hidden + hidden


@pytest.fixture
def setup(tmp_path):
    found = read_setup(make_run(tmp_path / "run", launcher="srun", nodes=2, gpus=4))
    return replace(found, job=found.job.model_copy(update={"preflight": "quick"}))


def changed(setup, **checkpoint):
    return replace(setup, job=setup.job.model_copy(update={"checkpoint": setup.job.checkpoint.model_copy(update=checkpoint)}))


def test_before_there_is_a_checkpoint_the_model_tells(setup):
    """Weights and AdamW's two moments in fp32; a file for each rank and the manifest."""
    assert needs_of(setup).checkpoint == Need(3 * 4 * parameters(**MODEL), 2 * 4 + 1)
    assert needs_of(changed(setup, writers_per_node=1)).checkpoint.files == 2 + 1


def test_the_newest_that_can_be_read_tells_better(setup):
    for step in (10, 20, 30):
        folder = setup.run.checkpoint(step)
        folder.mkdir(parents=True)
        files = {f"rank-{rank:05d}.h5": FileSum(1000 * step + rank, ()) for rank in range(2)}
        manifest = Manifest(step, 1, 0, {}, files, {})
        (folder / "manifest.json").write_bytes(manifest.to_json() if step < 30 else b"torn")
    assert needs_of(setup).checkpoint == Need(20_000 + 20_001, 3)
    off = replace(setup, job=setup.job.model_copy(update={"preflight": "off"}))
    assert needs_of(off).checkpoint == Need(3 * 4 * parameters(**MODEL), 9), "nothing is read for nobody"


def test_local_checkpoints_take_three_of_two_nodes_parts(setup):
    assert needs_of(setup).local_bytes == 0
    whole = 3 * 4 * parameters(**MODEL)
    assert needs_of(changed(setup, local=True)).local_bytes == local_bytes(whole, 2) == 3 * whole


def test_of_a_script_nothing_is_known(setup):
    entry = EntryConfig(command=("python", "train.py"))
    plain = replace(setup, job=setup.job.model_copy(update={"entry": entry}))
    assert (needs_of(plain).checkpoint, needs_of(plain).packages) == (Need(0), ())
    with_mpi = replace(setup, job=setup.job.model_copy(update={"entry": entry.model_copy(update={"mpi": True})}))
    assert needs_of(with_mpi).packages == ("mpi4py",)
