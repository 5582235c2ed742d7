"""Links of a chain that have nothing to do, row by row."""

from __future__ import annotations

import pytest

from slurmtrain.resilience.budget import Spent
from slurmtrain.resilience.chain import barred, is_last_link
from slurmtrain.resilience.records import AttemptRecord, Outcome


def attempt(category: str | None, job_id: str = "12_1") -> AttemptRecord:
    outcome = None if category is None else Outcome("requeue", "because", category=category)
    return AttemptRecord(1, job_id, 0, 0.0, ("n1",), (), 1, 1, outcome=outcome)


@pytest.mark.parametrize(
    ("name", "spent", "newest", "cancelled", "code"),
    [
        ("the first link", Spent(), None, False, None),
        ("the link before ran into its time limit (C36)", Spent("12"), attempt("time_limit"), False, None),
        ("the link before failed", Spent("12"), attempt("rank_crash"), False, None),
        ("the link before died without a word", Spent("12"), attempt(None), False, None),
        ("slurmtrain cancel", Spent("12"), attempt(None), True, 0),
        ("scancel of the link before alone", Spent("12"), attempt("cancelled"), False, 0),
        ("an earlier chain was cancelled", Spent("12"), attempt("cancelled", "11_4"), False, None),
        ("the budget is spent", Spent("12", over="3 attempts in a row brought no newer checkpoint"), attempt("hang"), False, 93),
        ("an earlier chain's budget was spent", Spent("11", over="spent"), attempt("hang", "11_4"), False, None),
    ],
)
def test_rows(name, spent, newest, cancelled, code):
    found = barred("12_2", spent, newest, cancelled=cancelled)
    assert (found.code if found else None) == code
    assert found is None or found.why


@pytest.mark.parametrize(
    ("own", "last", "is_last"), [("3", "3", True), ("2", "3", False), ("2", "", False), ("", "", False), ("9", "10", False)]
)
def test_the_last_link_is_told_by_slurms_variables(own, last, is_last):
    assert is_last_link({"SLURM_ARRAY_TASK_ID": own, "SLURM_ARRAY_TASK_MAX": last}) is is_last
