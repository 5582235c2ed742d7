"""Samples against tables made by hand: labels, masks, positions and document numbers, at the borders of documents and samples.

What would be wrong without them: an answer mask that is off by one (pytorch/torchtitan#2755), a document that just fills a sample and is
dropped (#4268), positions that wrap (#2849).
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from slurmtrain.data.samples import Samples
from slurmtrain.data.source import open_source
from slurmtrain.errors import DataError
from tests.data.token_files import write_folder

E, X = 256, -100


def samples(path, documents, length, *, marks=None, **options):
    pool = Samples(open_source(write_folder(path, documents, marks=marks)), length, **options)
    return [pool[i] for i in range(len(pool))]


def column(made, name):
    return [getattr(sample, name).tolist() for sample in made]


def test_joined_samples_run_over_the_ends_of_documents(tmp_path):
    made = samples(tmp_path, [[1, 2, E], [3, E], [4, 5, 6, 7, E]], 4)
    assert column(made, "inputs") == [[1, 2, E, 3], [E, 4, 5, 6]]
    assert column(made, "labels") == [[2, E, 3, E], [4, 5, 6, 7]]
    assert made[0].positions is made[0].documents is None


def test_separate_documents_begin_anew_and_foretell_nothing_of_each_other(tmp_path):
    made = samples(tmp_path, [[1, 2, E], [3, E], [4, 5, 6, 7, E]], 4, separate=True)
    assert column(made, "inputs") == [[1, 2, E, 3], [E, 4, 5, 6], [7, E, E, E]]
    assert column(made, "labels") == [[2, E, X, E], [X, 5, 6, 7], [E, X, X, X]]
    assert column(made, "positions") == [[0, 1, 2, 0], [0, 0, 1, 2], [0, 1, 0, 1]]
    assert column(made, "documents") == [[0, 0, 0, 1], [0, 1, 1, 1], [0, 0, 1, 1]]


def test_a_document_as_long_as_a_sample_is_one(tmp_path):
    made = samples(tmp_path, [[1, 2, 3, E], [4, 5, 6, E]], 4, separate=True)
    assert column(made, "inputs") == [[1, 2, 3, E], [4, 5, 6, E]]
    assert column(made, "labels") == [[2, 3, E, X], [5, 6, E, X]]
    assert column(made, "positions") == [[0, 1, 2, 3]] * 2
    assert column(made, "documents") == [[0, 0, 0, 0]] * 2


@pytest.mark.parametrize("length", [3, 4, 5])
def test_a_document_longer_than_a_sample_goes_on_from_position_0_with_the_right_label_at_the_cut(tmp_path, length):
    made = samples(tmp_path, [[*range(1, 9), E]], length, separate=True)
    stream = [*range(1, 9), E]
    assert [label for row in column(made, "labels") for label in row][:8] == stream[1:]
    assert all(sample.positions.max() < length for sample in made)
    assert [sample.positions[0] for sample in made] == [0] * len(made)
    assert sum((sample.labels != X).sum() for sample in made) == 8


def test_documents_of_one_token_and_of_none(tmp_path):
    made = samples(tmp_path, [[E], [], [1, E], [E]], 4, separate=True)
    assert column(made, "labels") == [[X, E, X, X]]
    assert column(made, "positions") == [[0, 0, 1, 0]]
    assert column(made, "documents") == [[0, 1, 1, 2]]


@pytest.mark.parametrize("separate", [False, True])
def test_only_labels_that_are_answers_count_not_the_tokens_that_foretell_them(tmp_path, separate):
    documents = [[1, 2, 3, 4, E], [5, 6, E]]
    marks = [[0, 0, 1, 1, 1], [0, 1, 1]]
    made = samples(tmp_path, documents, 3, marks=marks, answers=True, separate=separate, whole=True)
    assert column(made, "labels") == [[X, 3, 4], [E, X, 6], [E, X, X]]


def test_a_token_at_the_cut_knows_whether_its_label_is_an_answer(tmp_path):
    made = samples(tmp_path, [[1, 2, 3, 4]], 2, marks=[[0, 0, 1, 0]], answers=True, whole=True)
    assert column(made, "labels") == [[X, 3], [X, X]]


@pytest.mark.parametrize("tokens, joined, whole", [(4, 1, 1), (5, 1, 2), (6, 1, 2), (7, 2, 2), (8, 2, 3)])
def test_whole_sets_lose_no_label(tmp_path, tokens, joined, whole):
    documents = [list(range(1, tokens + 1))]
    assert len(samples(tmp_path, documents, 3)) == joined
    for separate in (False, True):
        made = samples(tmp_path, documents, 3, whole=True, separate=separate)
        assert len(made) == whole
        assert [label for row in column(made, "labels") for label in row if label != X] == documents[0][1:]


def test_padding_is_the_end_of_documents_without_labels(tmp_path):
    made = samples(tmp_path, [[1, 2]], 4, whole=True)
    assert column(made, "inputs") == [[1, 2, E, E]]
    assert column(made, "labels") == [[2, X, X, X]]


def test_against_a_plain_loop_over_tokens(tmp_path):
    """Random documents: each token's position and label by the definition, token by token."""
    random = np.random.default_rng(3)
    documents = [[*random.integers(0, 256, n).tolist(), E] for n in random.integers(0, 30, 60)]
    marks = [random.integers(0, 2, len(document)).tolist() for document in documents]
    length, stream = 7, [*chain.from_iterable(documents)]
    owner = [number for number, document in enumerate(documents) for _ in document]
    flags = [*chain.from_iterable(marks)]
    made = samples(tmp_path, documents, length, marks=marks, separate=True, answers=True)
    for at in range(len(stream) - 1):
        sample, place = made[at // length], at % length
        first = at // length * length
        begin = max(first, owner.index(owner[at]))
        assert sample.inputs[place] == stream[at]
        assert sample.positions[place] == at - begin
        assert sample.labels[place] == (stream[at + 1] if owner[at + 1] == owner[at] and flags[at + 1] else X)
        same = [owner[first + i] == owner[at] for i in range(length) if first + i < len(stream)]
        assert (sample.documents == sample.documents[place])[: len(same)].tolist() == same


@pytest.mark.parametrize("options, least", [({}, 4), ({"separate": True}, 2), ({"whole": True}, 2)])
def test_too_few_tokens_for_one_sample_say_how_many_are_needed(tmp_path, options, least):
    with pytest.raises(DataError, match=f"1 tokens, a sample of sequence length 3 takes {least}"):
        samples(tmp_path, [[1]], 3, **options)
    assert len(samples(tmp_path, [[1] * least], 3, **options)) == 1


def test_answers_that_are_not_marked_are_an_error(tmp_path):
    with pytest.raises(DataError, match="no marked answers"):
        samples(tmp_path, [[1, 2, 3]], 2, answers=True)
