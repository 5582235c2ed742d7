"""numerics.json: what a step is trained with is a function of it."""

from __future__ import annotations

import pytest

from slurmtrain.telemetry.interventions import Book, Rollback, read_book

FIRST = Rollback(step=12, began=11, to=10, cause="nonfinite", attempt=1, t=5.5, lr_factor=0.5, until=20, left_out=(80, 96))
SECOND = Rollback(step=15, began=15, to=10, cause="spike", attempt=2, lr_factor=0.5, until=16, left_out=(80, 120))
THIRD = Rollback(step=16, began=16, to=12, cause="spike", left_out=(120, 136))


def test_there_and_back(tmp_path):
    book = Book(3, (FIRST, SECOND, THIRD))
    path = tmp_path / "numerics.json"
    path.write_bytes(book.to_json())
    assert read_book(path) == book
    assert read_book(tmp_path / "none") == Book()


@pytest.mark.parametrize("text", ["", "[]", '{"v":1}', '{"skipped":1,"rollbacks":[{"step":1}]}', '{"skipped":1,"rollbacks":[3]}'])
def test_damaged(tmp_path, text):
    path = tmp_path / "numerics.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"numerics\.json: not what was done"):
        read_book(path)


def test_factors_of_spans_that_overlap_are_multiplied():
    book = Book(0, (FIRST, SECOND))
    assert [book.lr_factor(step) for step in (10, 11, 16, 17, 20, 21)] == [1.0, 0.25, 0.25, 0.5, 0.5, 1.0]


def test_what_is_left_out():
    book = Book(0, (FIRST, SECOND, THIRD))
    # From 80 the longer of two spans, and from its end the third at once; positions inside a span are nobody's start.
    assert [book.position(at) for at in (72, 80, 88, 120, 136)] == [72, 136, 88, 136, 136]
