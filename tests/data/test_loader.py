"""The samples of a step are the same whatever the dp size, wherever the run was interrupted; labels are the next tokens."""

from __future__ import annotations

import numpy as np
import pytest

from slurmtrain.data.loader import Batches, sample_count
from slurmtrain.data.tokens import TokenFolder
from slurmtrain.errors import DataError
from tests.data.test_tokens import write_folder

T = 8


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """500 tokens whose value is their position modulo 251: a sample tells where it came from."""
    return TokenFolder.open(write_folder(tmp_path_factory.mktemp("tokens"), [[i % 251 for i in range(500)]]))


def batches(tokens, dp_rank=0, dp_size=1, *, micro=2, position=0, seed=5, batch=12):
    return Batches(
        tokens, sequence_length=T, global_batch=batch, micro_batch=micro, dp_rank=dp_rank, dp_size=dp_size, seed=seed, position=position
    )


def rows(tokens, dp_size, steps, **options):
    """Per step, the inputs of all dp ranks as a sorted list of rows."""
    ranks = [batches(tokens, rank, dp_size, **options) for rank in range(dp_size)]
    return [sorted(tuple(row) for one in ranks for row in next(one).inputs.reshape(-1, T).tolist()) for _ in range(steps)]


def test_shapes_and_labels(tokens):
    batch = next(batches(tokens, dp_rank=1, dp_size=2))
    assert batch.inputs.shape == batch.labels.shape == (3, 2, T)
    assert batch.inputs.dtype == batch.labels.dtype == np.int64
    assert np.array_equal((batch.inputs + 1) % 251, batch.labels), "each label is the token after its input"
    assert batch.inputs.flags.c_contiguous
    assert batch.labels.flags.c_contiguous


def test_samples_are_runs_of_the_text_that_share_one_token_with_the_next(tokens):
    assert sample_count(tokens, T) == 62  # (500 - 1) // 8
    starts = sorted(row[0] for step in rows(tokens, 1, 1, batch=62) for row in step)
    assert starts == sorted(8 * i % 251 for i in range(62))


@pytest.mark.parametrize("dp_size", [2, 3, 6])
@pytest.mark.parametrize("micro", [1, 2])
def test_all_ranks_together_have_the_same_samples_for_every_dp_size(tokens, dp_size, micro):
    assert rows(tokens, dp_size, 12, micro=micro) == rows(tokens, 1, 12, micro=12)


def test_a_run_that_comes_back_with_another_dp_size_goes_on_where_it_was(tokens):
    whole = rows(tokens, 1, 9)
    first = batches(tokens, dp_size=2)
    for _ in range(4):
        next(first)
    assert first.position == 48
    assert rows(tokens, 3, 5, position=first.position) == whole[4:]


def test_an_epoch_has_every_sample_once_and_the_next_another_order(tokens):
    stream = [tuple(next(one).inputs[0, 0]) for one in [batches(tokens, micro=1, batch=1)] for _ in range(124)]
    assert len(set(stream[:62])) == 62
    assert sorted(stream[:62]) == sorted(stream[62:])
    assert stream[:62] != stream[62:]


def test_the_seed_changes_the_order(tokens):
    assert rows(tokens, 1, 1, seed=6) != rows(tokens, 1, 1, seed=5)


def test_a_global_batch_may_be_larger_than_the_data(tokens):
    step = rows(tokens, 2, 1, batch=124)[0]
    assert all(step.count(row) == 2 for row in step)


def test_too_few_tokens_for_one_sample_say_how_many_are_needed(tokens):
    with pytest.raises(DataError, match="500 tokens, a sample of sequence length 500 takes 501"):
        sample_count(tokens, 500)
    assert sample_count(tokens, 499) == 1
