"""What the run folder says of checkpoints on the nodes' own disks: rules, the newest, and what no longer counts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.local import LocalNewest, Rules, forget_after, make_rules, newest_local, newest_step, read_rules, tell_newest
from tests.store.checkpoints import save


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "llama")
    run.create()
    return run


def attempts(run, count):
    for number in range(1, count + 1):
        run.attempt(number).create()


def tell(run, step, attempt=1):
    tell_newest(run, LocalNewest(step, attempt, 5.0, ("n1", "n2")))


def test_rules_are_made_once_and_each_run_has_its_own(run, tmp_path):
    first = make_rules(run)
    assert make_rules(run) == first == read_rules(run)
    other = RunDir(tmp_path / "other")
    other.create()
    assert make_rules(other).id != first.id


def test_rules_that_cannot_be_understood_let_nothing_count(run):
    first = make_rules(run)
    tell(run, 10)
    for text in (b"", b"{", b"[]", b'{"v": 1}', b'{"v": 1, "id": "x", "forgotten": [3]}'):
        run.local_rules.write_bytes(text)
        assert read_rules(run) is None
        assert newest_local(run) is None
    assert make_rules(run).id != first.id
    run.local_rules.write_text(json.dumps({"v": 2, "id": "x"}))
    with pytest.raises(CheckpointError, match="version 2"):
        make_rules(run)
    assert newest_local(run) is None


def test_the_newest_is_told_and_read(run):
    make_rules(run)
    assert newest_local(run) is None
    tell(run, 500, 2)
    assert newest_local(run) == LocalNewest(500, 2, 5.0, ("n1", "n2"))
    run.local_json.write_text("{")
    assert newest_local(run) is None


def test_progress_is_that_of_the_further_tier(run):
    make_rules(run)
    assert newest_step(run) is None
    tell(run, 20)
    assert newest_step(run) == 20
    save(run, 10)
    assert newest_step(run) == 20
    save(run, 30)
    assert newest_step(run) == 30


def test_a_person_who_goes_back_leaves_later_ones_behind(run):
    make_rules(run)
    attempts(run, 2)
    tell(run, 500, 2)
    forget_after(run, 400)
    assert newest_local(run) is None
    assert not run.local_json.exists()
    rules = read_rules(run)
    assert rules.counts(2, 400)
    assert not rules.counts(2, 401)
    assert rules.counts(3, 401)
    tell(run, 400, 1)
    forget_after(run, 400)
    assert newest_local(run).step == 400
    forget_after(run, None)
    assert newest_local(run) is None
    assert not read_rules(run).counts(1, 0)


def test_a_run_without_the_tier_forgets_nothing(run):
    forget_after(run, 4)
    assert not run.local_rules.exists()


PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(-1, 6)), max_size=6)


@given(pairs=PAIRS, attempt=st.integers(0, 7), step=st.integers(0, 7))
def test_what_counts_is_what_each_going_back_leaves(pairs, attempt, step):
    rules = Rules("x")
    for pair in pairs:
        rules = rules.without(*pair)
    assert rules.counts(attempt, step) == all(attempt > a or step <= s for a, s in pairs)
