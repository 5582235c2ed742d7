"""A job's batches: what its keys do to them; evaluation sets: every label once, the same count on all ranks whatever the sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slurmtrain.config.data import DataConfig, DataSource
from slurmtrain.config.job import JobConfig, RunConfig
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.training import EvaluationConfig, TrainingConfig
from slurmtrain.data.staging import Node
from slurmtrain.data.stream import evaluation_batches, open_batches
from slurmtrain.errors import ConfigError, DataError
from tests.data.token_files import write_folder, write_hdf5, write_pair

MODEL = ModelConfig(layers=1, hidden=32, heads=2, kv_heads=2, ffn=32, vocab=257)


def job(path=None, *, batch=4, micro=1, length=8, batches=16, vocab=257, **data) -> JobConfig:
    return JobConfig(
        run=RunConfig(name="x"),
        model=MODEL.model_copy(update={"vocab": vocab}),
        data=DataConfig(path=path, **data),
        training=TrainingConfig(steps=1, sequence_length=length, global_batch=batch, micro_batch=micro),
        evaluation=EvaluationConfig(batches=batches),
    )


def stream(config, steps=3, *, rank=0, size=1, **options):
    with open_batches(config, data_rank=rank, data_size=size, seed=5, **options) as batches:
        return [next(batches) for _ in range(steps)]


def numbers(count):
    return [[i % 251 for i in range(count)]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("f"), numbers(500))


def test_all_formats_give_the_same_batches(tmp_path, folder):
    write_pair(tmp_path / "p", numbers(500))
    write_hdf5(tmp_path / "t.h5", numbers(500))
    expected = stream(job(folder))
    for path in (tmp_path / "p", tmp_path / "t.h5"):
        assert all(np.array_equal(a.inputs, b.inputs) for a, b in zip(stream(job(path)), expected, strict=True))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_prefetch_changes_nothing(folder, prefetch):
    expected = stream(job(folder, prefetch=1), 6)
    assert all(np.array_equal(a.inputs, b.inputs) for a, b in zip(stream(job(folder, prefetch=prefetch), 6), expected, strict=True))


def test_separate_documents_and_answers_are_asked_for_in_the_job(tmp_path):
    path = write_folder(tmp_path, [[1, 2, 256]] * 20, marks=[[0, 1, 0]] * 20)
    batch = stream(job(path, documents="separate", loss_on="answers"), 1)[0]
    assert np.array_equal(batch.labels, np.where(batch.inputs == 1, 2, -100))
    assert batch.positions.shape == batch.documents.shape == batch.inputs.shape == (4, 1, 8)
    assert stream(job(path), 1)[0].positions is None


def test_all_ranks_of_a_data_rank_read_the_same(folder):
    one, other = (stream(job(folder), rank=1, size=2) for _ in range(2))
    assert all(np.array_equal(a.inputs, b.inputs) and np.array_equal(a.labels, b.labels) for a, b in zip(one, other, strict=True))


def test_nothing_is_built_or_written_when_training_starts(tmp_path):
    """So no node can lack an index, or have another one (NVIDIA/Megatron-LM#907)."""
    paths = (
        write_folder(tmp_path / "f", numbers(500)),
        write_pair(tmp_path / "p", numbers(300)),
        write_hdf5(tmp_path / "t.h5", numbers(300)),
    )
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    config = job(sources=tuple(DataSource(path=path) for path in paths), documents="separate")
    nodes = [open_batches(config, data_rank=0, data_size=1, seed=5) for _ in range(2)]
    first, second = (next(node) for node in nodes)
    assert np.array_equal(first.inputs, second.inputs)
    assert nodes[0].fingerprint == nodes[1].fingerprint
    for node in nodes:
        node.close()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_staged_batches_are_the_same_and_are_read_on_the_node(tmp_path, folder):
    config = job(folder, stage="local")
    expected = stream(job(folder))
    batches = open_batches(config, data_rank=0, data_size=1, seed=5, node=Node(tmp_path / "scratch"))
    assert batches.notes == ()
    assert all(np.array_equal(next(batches).inputs, b.inputs) for b in expected)
    assert batches.fingerprint == open_batches(job(folder), data_rank=0, data_size=1, seed=5).fingerprint
    batches.close()
    assert list((tmp_path / "scratch").rglob("tokens.bin"))
    assert "no paths.scratch" in open_batches(config, data_rank=0, data_size=1, seed=5).notes[0]


def test_the_fingerprint_tells_what_positions_count_in(tmp_path, folder):
    other = write_folder(tmp_path, numbers(300))

    def told(*parts, **data):
        sources = tuple(DataSource(path=path, weight=weight) for path, weight in parts)
        return open_batches(job(sources=sources, **data), data_rank=0, data_size=1, seed=5).fingerprint

    plain = open_batches(job(folder), data_rank=0, data_size=1, seed=5).fingerprint
    different = [
        told((folder, 1.0), documents="separate"),
        told((other, 1.0)),
        told((folder, 1.0), (other, 1.0)),
        told((other, 1.0), (folder, 1.0)),
        told((folder, 1.0), (other, 2.0)),
    ]
    assert told((folder, 1.0)) == told((folder, 3.0)) == plain, "the weight of one source alone means nothing"
    assert len({plain, *different}) == 6


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"vocab": 200}, ConfigError, "model.vocab = 200: the tokens in .* have a vocabulary of 257: use 257 or more"),
        ({"length": 500}, ConfigError, "a sample takes 501 tokens, .* has 500: use 499 or less, or more text"),
        ({"loss_on": "answers"}, ConfigError, "has no marked answers: build it with --answers"),
    ],
)
def test_tokens_that_do_not_fit_the_job_are_refused(folder, options, error, words):
    with pytest.raises(error, match=words):
        open_batches(job(folder, **options), data_rank=0, data_size=1, seed=5)


def test_tokens_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(DataError, match="build it by slurmtrain data build"):
        open_batches(job(tmp_path / "none"), data_rank=0, data_size=1, seed=5)


def labels_of(sets) -> list[int]:
    return [label for batches in sets for batch in batches for label in batch.labels.flatten().tolist() if label != -100]


@pytest.mark.parametrize("tokens", [2, 8, 9, 10, 33, 34, 100])
@pytest.mark.parametrize("size, micro", [(1, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize("documents", ["joined", "separate"])
def test_every_label_of_an_evaluation_set_comes_once_and_all_ranks_make_as_many_batches(tmp_path, tokens, size, micro, documents):
    text = numbers(tokens)
    path = write_folder(tmp_path, text)
    config = job(path, micro=micro, documents=documents)
    ranks = [evaluation_batches(path, config, data_rank=rank, data_size=size) for rank in range(size)]
    batches = -(-(tokens - 1) // (8 * 4))
    assert [len(rank) for rank in ranks] == [batches] * size
    assert [len(list(rank)) for rank in ranks] == [batches] * size
    assert {batch.inputs.shape for rank in ranks for batch in rank} == {(4 // size // micro, micro, 8)}
    assert sorted(labels_of(ranks)) == sorted(text[0][1:])
    assert labels_of(ranks[:1]) == labels_of(ranks[:1]), "the same at each pass"


def test_an_evaluation_set_may_be_cut_and_is_the_same_for_any_dp_size(folder):
    config = job(folder, batches=3)
    whole = labels_of([evaluation_batches(folder, config, data_rank=0, data_size=1)])
    assert whole == numbers(500)[0][1 : 3 * 4 * 8 + 1]
    for size in (2, 4):
        ranks = [evaluation_batches(folder, config, data_rank=rank, data_size=size) for rank in range(size)]
        assert sorted(labels_of(ranks)) == sorted(whole)


def test_rows_without_labels_have_tokens_that_the_model_knows(tmp_path):
    path: Path = write_folder(tmp_path, numbers(2))
    batch = next(iter(evaluation_batches(path, job(path, documents="separate"), data_rank=0, data_size=1)))
    assert batch.inputs.min() >= 0
    assert batch.inputs.max() < 257
    assert (batch.labels != -100).sum() == 1
    assert batch.positions.max() < 8
