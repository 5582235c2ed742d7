"""Old checkpoints go by the rules, the newest that verifies and leased ones never do, and a removal that dies lists no half."""

from __future__ import annotations

import errno
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.rundir import RunDir
from slurmtrain.store.leases import pin
from slurmtrain.store.listing import steps_present
from slurmtrain.store.retention import Kept, RetentionPolicy, kept, remove, retain, to_remove
from slurmtrain.store.verify import verify
from tests.fakes.clock import FakeClock
from tests.fakes.syscalls import FakeSyscalls, Refusal, tree
from tests.store.checkpoints import save

HOUR = 3600.0


@pytest.mark.parametrize(
    "steps, keep, durable, expected",
    [
        ([], 3, 10, []),
        ([10], 1, 10, []),
        ([30, 10, 20, 40], 2, 40, [10, 20]),
        ([10, 20, 30], 3, 30, []),
        ([10, 20, 30, 40], 1, 20, [10]),  # 30 and 40 did not verify; 20 was saved again after them
        ([10, 20, 100], 2, 20, []),
        ([9, 10, 11], 1, 11, [9, 10]),
    ],
)
def test_the_newest_stay(steps, keep, durable, expected):
    assert to_remove([Kept(step) for step in steps], RetentionPolicy(keep), durable=durable) == expected


def test_multiples_of_a_step_stay_for_ever():
    policy = RetentionPolicy(keep=1, every_steps=20)
    assert to_remove([Kept(step) for step in (10, 20, 30, 40, 50, 60)], policy, durable=60) == [10, 30, 50]


def test_the_newest_of_each_span_of_time_stays_for_ever():
    times = {10: 0.1, 20: 0.9, 30: 1.0, 40: 1.5, 50: 1.6, 60: 4.2, 70: 4.3}
    policy = RetentionPolicy(keep=1, every_hours=1.0)
    assert to_remove([Kept(step, t * HOUR) for step, t in times.items()], policy, durable=70) == [10, 30, 40, 60]
    assert to_remove([Kept(step, t * HOUR) for step, t in times.items()], RetentionPolicy(keep=1, every_hours=2.0), durable=70) == [
        *(10, 20, 30, 40),
        60,
    ]


def test_of_a_span_in_which_a_clock_went_back_the_latest_by_the_clock_stays():
    times = {10: 0.1, 20: 0.9, 30: 0.5, 40: 1.5}
    policy = RetentionPolicy(keep=1, every_hours=1.0)
    assert to_remove([Kept(step, t * HOUR) for step, t in times.items()], policy, durable=40) == [10, 30]


def test_a_leased_one_stays_while_it_is():
    three = [Kept(10), Kept(20), Kept(30)]
    assert to_remove(three, RetentionPolicy(1), durable=30, leased={10, 99}) == [20]


def test_the_best_stay_whatever_their_age_and_what_has_no_metric_is_not_best():
    losses = {10: 3.0, 20: 1.5, 30: 2.0, 40: math.nan, 50: 1.5, 60: 2.5}
    all_ = [Kept(step, 0.0, {"heldout": loss}) for step, loss in losses.items()] + [Kept(5), Kept(6, 0.0, {"other": 0.0})]
    assert to_remove(all_, RetentionPolicy(1, best=2, best_metric="heldout"), durable=60) == [5, 6, 10, 30, 40]
    assert to_remove(all_, RetentionPolicy(1, best=1, best_metric="heldout"), durable=60) == [5, 6, 10, 30, 40, 50]
    assert to_remove(all_, RetentionPolicy(1, best=0, best_metric="heldout"), durable=60) == [5, 6, 10, 20, 30, 40, 50]


LISTS = st.dictionaries(
    st.integers(0, 60),
    st.tuples(st.floats(0, 1e5), st.dictionaries(st.sampled_from(["a", "b"]), st.floats(allow_nan=True), max_size=2)),
    max_size=14,
).map(lambda found: [Kept(step, t, metrics) for step, (t, metrics) in found.items()])
POLICIES = st.builds(
    RetentionPolicy,
    st.integers(1, 4),
    st.none() | st.integers(1, 20),
    st.none() | st.floats(0.1, 10),
    st.integers(0, 3),
    st.none() | st.sampled_from(["a", "b"]),
)


@given(LISTS, POLICIES, st.data())
def test_whatever_the_rules_the_durable_one_the_leased_and_the_newest_stay_and_asking_again_gives_nothing(all_, policy, data):
    one_of_them = st.sampled_from([one.step for one in all_] or [0])
    durable = data.draw(one_of_them | st.integers(0, 60))
    leased = data.draw(st.sets(one_of_them, max_size=4))
    going = to_remove(all_, policy, durable=durable, leased=leased)
    assert going == sorted(set(going))
    assert set(going) <= {one.step for one in all_}
    assert not {durable, *leased} & set(going)
    assert all(step < durable for step in going)
    newest = sorted(one.step for one in all_ if one.step <= durable)[-policy.keep :]
    assert not set(newest) & set(going)
    left = [one for one in all_ if one.step not in going]
    assert to_remove(left, policy, durable=durable, leased=leased) == []
    assert to_remove(left[::-1], policy, durable=durable, leased=leased) == []


@given(LISTS, POLICIES, st.integers(0, 60))
def test_each_rule_keeps_what_it_keeps_alone(all_, policy, durable):
    """All rules together remove what every one of them would remove alone."""
    alone = [
        RetentionPolicy(policy.keep),
        RetentionPolicy(1, every_steps=policy.every_steps),
        RetentionPolicy(1, every_hours=policy.every_hours),
        RetentionPolicy(1, best=policy.best, best_metric=policy.best_metric),
    ]
    expected = set.intersection(*(set(to_remove(all_, one, durable=durable)) for one in alone))
    assert set(to_remove(all_, policy, durable=durable)) == expected


def test_what_is_kept_is_told_by_the_manifests(tmp_path):
    run = RunDir(tmp_path)
    save(run, 10, t=100.5, metrics={"heldout": 2.5, "note": "text", "flag": True})
    save(run, 20)
    (save(run, 30) / "manifest.json").write_bytes(b"junk")
    found = kept(run)
    assert (found[0].step, found[0].t, found[0].metrics) == (10, 100.5, {"heldout": 2.5})
    changed = [(run.checkpoint(step) / "manifest.json").stat().st_mtime for step in (20, 30)]
    assert [(one.step, one.metrics) for one in found[1:]] == [(20, {}), (30, {})]
    assert [one.t for one in found[1:]] == pytest.approx(changed)
    assert kept(run, manifests=False) == [Kept(10), Kept(20), Kept(30)]


def test_a_checkpoint_that_was_made_again_is_looked_at_again(tmp_path):
    run = RunDir(tmp_path)
    save(run, 10, t=1.0)
    assert kept(run)[0].t == 1.0
    assert remove(run, [10]) == []
    save(run, 10, t=22.0)
    assert kept(run)[0].t == 22.0


def test_removal_leaves_the_others_and_no_trash(tmp_path):
    run = RunDir(tmp_path)
    for step in (10, 20, 30):
        save(run, step)
    assert remove(run, [10, 20, 25]) == [], "what has gone already is no trouble"
    assert [p.name for p in run.checkpoints.iterdir()] == ["step-00000030"]
    assert verify(run.checkpoint(30)) == []


def test_a_removal_that_fails_half_way_lists_no_half_and_tells(tmp_path):
    run = RunDir(tmp_path)
    for step in (10, 20):
        save(run, step)
    broken = FakeSyscalls(refusals=[Refusal(errno.EIO, at=2, times=None, calls=("unlink",))])
    assert remove(run, [10], broken) == [f"{run.checkpoint(10)}: not removed: Input/output error"]
    assert steps_present(run.checkpoints) == [20]
    assert len(tree(run.trash(10))) == 2
    save(run, 30)
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["step-00000020", "step-00000030"], "the next save clears the trash"


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_without_permission_everything_stays_and_is_told(tmp_path, code):
    run = RunDir(tmp_path)
    for step in (10, 20, 30):
        save(run, step)
    before = tree(run.checkpoints)
    notes = retain(run, RetentionPolicy(1), 30, calls=FakeSyscalls(refusals=[Refusal(code, times=None)]))
    assert [note.split(": ")[0] for note in notes] == [str(run.checkpoint(10)), str(run.checkpoint(20))]
    assert tree(run.checkpoints) == before


def test_retention_after_a_save(tmp_path):
    run, clock = RunDir(tmp_path), FakeClock()
    for step, loss in ((10, 1.0), (20, 3.0), (30, 2.0), (40, 2.5), (50, 2.6)):
        save(run, step, metrics={"heldout": loss})
    assert pin(run, 30, "a reader", 100, clock=clock) is None
    assert retain(run, RetentionPolicy(1, best=1, best_metric="heldout"), 50, clock=clock) == []
    assert steps_present(run.checkpoints) == [10, 30, 50]
    clock.advance(1000)
    assert retain(run, RetentionPolicy(1, best=1, best_metric="heldout"), 50, clock=clock) == []
    assert steps_present(run.checkpoints) == [10, 50]
    assert list(run.leases.iterdir()) == []


def test_where_leases_cannot_be_read_nothing_is_removed(tmp_path):
    run = RunDir(tmp_path)
    for step in (10, 20):
        save(run, step)
    run.leases.write_text("not a folder")
    notes = retain(run, RetentionPolicy(1), 20)
    assert len(notes) == 1
    assert "old checkpoints were not removed: Not a directory" in notes[0]
    assert steps_present(run.checkpoints) == [10, 20]


def test_a_run_without_a_folder_has_nothing_to_remove(tmp_path):
    assert retain(RunDir(tmp_path / "gone"), RetentionPolicy(1), 20) == []


def test_a_lease_that_comes_while_a_checkpoint_goes_brings_it_back(tmp_path):
    run, clock = RunDir(tmp_path), FakeClock()
    save(run, 10)
    before = tree(run.checkpoint(10))

    class Late(FakeSyscalls):
        def rename(self, source, target):
            if source == run.checkpoint(10):
                assert pin(run, 10, "a reader", 100, clock=clock) is None
            super().rename(source, target)

    assert remove(run, [10], Late(), clock=clock) == []
    assert tree(run.checkpoint(10)) == before
    assert json.loads(next(run.leases.iterdir()).read_text())["by"] == "a reader"
