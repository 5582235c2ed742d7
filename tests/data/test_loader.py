"""The samples of a step are the same whatever the dp size, wherever the run was interrupted, and whatever is made ahead."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from slurmtrain.data.loader import Batches, Share
from slurmtrain.data.samples import Samples
from slurmtrain.data.source import open_source
from slurmtrain.errors import DataError
from tests.data.token_files import write_folder

T = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """500 tokens whose value is their position modulo 251: a sample tells where it came from."""
    return write_folder(tmp_path_factory.mktemp("tokens"), [[i % 251 for i in range(500)]])


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """300 tokens of 255, 254: 37 samples that are no samples of the other source."""
    return write_folder(tmp_path_factory.mktemp("other"), [[255 - i % 2 for i in range(300)]])


def making():
    """Threads that make batches ahead."""
    return {thread.ident for thread in threading.enumerate() if thread.name == "slurmtrain-prefetch"}


@pytest.fixture
def batches(folder, other):
    """A maker of Batches; all are closed in the end."""
    made, before = [], making()

    def make(dp_rank=0, dp_size=1, *, micro=2, position=0, step=0, seed=5, batch=12, weights=(1.0,), prefetch=0, ramp=None):
        pools = [Samples(open_source(path), T) for path in (folder, other)[: len(weights)]]
        size = ramp or (lambda _: batch)
        share = Share(dp_rank, dp_size, micro)
        made.append(Batches(pools, weights, global_batch=size, share=share, seed=seed, position=position, step=step, prefetch=prefetch))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert making() <= before


@pytest.fixture
def rows(batches):
    """Per step, the inputs of all dp ranks as a sorted list of rows."""

    def made(dp_size, steps, **options):
        ranks = [batches(rank, dp_size, **options) for rank in range(dp_size)]
        return [sorted(tuple(row) for one in ranks for row in next(one).inputs.reshape(-1, T).tolist()) for _ in range(steps)]

    return made


def test_shapes_and_labels(batches):
    batch = next(batches(dp_rank=1, dp_size=2))
    assert batch.inputs.shape == batch.labels.shape == (3, 2, T)
    assert batch.inputs.dtype == batch.labels.dtype == np.int64
    assert np.array_equal((batch.inputs + 1) % 251, batch.labels), "each label is the token after its input"
    assert batch.inputs.flags.c_contiguous
    assert batch.labels.flags.c_contiguous
    assert batch.positions is batch.documents is None


def test_samples_are_runs_of_the_text_that_share_one_token_with_the_next(rows):
    starts = sorted(row[0] for step in rows(1, 1, batch=62) for row in step)
    assert starts == sorted(8 * i % 251 for i in range(62))  # (500 - 1) // 8 = 62


@pytest.mark.parametrize("weights", [(1.0,), (2.0, 1.0)])
@pytest.mark.parametrize("dp_size", [2, 3, 6])
@pytest.mark.parametrize("micro", [1, 2])
def test_all_ranks_together_have_the_same_samples_for_every_dp_size(rows, dp_size, micro, weights):
    assert rows(dp_size, 12, micro=micro, weights=weights) == rows(1, 12, micro=12, weights=weights)


@pytest.mark.parametrize("weights", [(1.0,), (2.0, 1.0)])
def test_a_run_that_comes_back_with_another_dp_size_goes_on_where_it_was(batches, rows, weights):
    whole = rows(1, 9, weights=weights)
    first = batches(dp_size=2, weights=weights, prefetch=2)
    for _ in range(4):
        next(first)
    assert first.position == 48
    assert rows(3, 5, position=first.position, weights=weights) == whole[4:]


def test_an_epoch_has_every_sample_once_and_the_next_another_order(batches):
    one = batches(micro=1, batch=1)
    stream = [tuple(next(one).inputs[0, 0]) for _ in range(124)]
    assert len(set(stream[:62])) == 62
    assert sorted(stream[:62]) == sorted(stream[62:])
    assert stream[:62] != stream[62:]


def test_a_mixture_goes_through_each_source_by_its_own_epochs(batches):
    """3 to 1: after 248 samples 186 = 3 epochs of 62 of the one, 62 of the other, whose 37 samples come once and then 25 of them again."""
    one = batches(micro=1, batch=1, weights=(3.0, 1.0))
    stream = [tuple(next(one).inputs[0, 0]) for _ in range(248)]
    first = [row for row in stream if max(row) < 251]
    assert len(first) == 186
    epochs = [first[i : i + 62] for i in (0, 62, 124)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert all(len(set(epoch)) == 62 for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_sources_of_equal_length_are_not_shuffled_alike(folder):
    pools = [Samples(open_source(folder), T) for _ in range(2)]
    one = Batches(pools, (1.0, 1.0), global_batch=lambda _: 1, share=Share(0, 1, 1), seed=5)
    stream = [tuple(next(one).inputs[0, 0]) for _ in range(124)]
    assert sorted(stream[::2]) == sorted(stream[1::2])
    assert stream[::2] != stream[1::2]


def test_the_seed_changes_the_order(rows):
    assert rows(1, 1, seed=6) != rows(1, 1, seed=5)


def test_a_global_batch_may_be_larger_than_the_data(rows):
    step = rows(2, 1, batch=124)[0]
    assert all(step.count(row) == 2 for row in step)


def ramp(step):
    return 4 if step <= 2 else 12


def test_a_batch_that_grows_takes_the_same_stream_of_samples(batches):
    grown, plain = batches(ramp=ramp, prefetch=1), batches(batch=4)
    pieces = [next(grown) for _ in range(4)]
    assert [piece.inputs.shape for piece in pieces] == [(2, 2, T), (2, 2, T), (6, 2, T), (6, 2, T)]
    assert grown.position == 4 + 4 + 12 + 12
    stream = np.concatenate([next(plain).inputs.reshape(-1, T) for _ in range(8)])
    assert np.array_equal(np.concatenate([piece.inputs.reshape(-1, T) for piece in pieces]), stream)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("weights", [(1.0,), (2.0, 1.0)])
def test_a_run_with_two_interruptions_trains_on_the_same_tokens(batches, prefetch, weights):
    """Stopped while batches were in flight, once inside the first epoch and once in a later one (pytorch/torchtitan#3907, #1357, #3008)."""
    whole = batches(weights=weights, ramp=ramp)
    expected = [next(whole).inputs for _ in range(14)]
    seen, position, step = [], 0, 0
    for steps in (3, 7, 4):
        part = batches(weights=weights, ramp=ramp, prefetch=prefetch, position=position, step=step)
        seen += [next(part).inputs for _ in range(steps)]
        position, step = part.position, step + steps
        part.close()
    assert all(np.array_equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_seeking_drops_what_was_made_ahead(batches):
    one, plain = batches(prefetch=2), batches()
    first = [next(plain).inputs for _ in range(3)]
    next(one)
    one.seek(24, step=2)
    assert one.position == 24
    assert np.array_equal(next(one).inputs, first[2])
    one.seek(0)
    assert np.array_equal(next(one).inputs, first[0])


def test_a_closed_one_goes_on_where_it_was(batches):
    one, plain = batches(prefetch=3), batches()
    expected = [next(plain).inputs for _ in range(2)]
    assert np.array_equal(next(one).inputs, expected[0])
    one.close()
    assert np.array_equal(next(one).inputs, expected[1])


@pytest.mark.parametrize("prefetch", [0, 2])
def test_damaged_tokens_are_an_error_at_their_step_and_no_earlier(tmp_path, prefetch):
    """The third of three samples is damaged; with this seed it comes second."""
    pools = [Samples(open_source(write_folder(tmp_path, [[1] * 17 + [300] * 8])), T)]
    with Batches(pools, (1.0,), global_batch=lambda _: 1, share=Share(0, 1, 1), seed=3, prefetch=prefetch) as one:
        assert next(one).inputs.tolist() == [[[1] * 8]]
        for _ in range(2):
            with pytest.raises(DataError, match="token 300 at position 17"):
                next(one)
        assert one.position == 1
