"""The accounts of a run that was written by hand, second by second; and Kokolis et al.'s formula by their own figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmtrain.report.goodput import accounts, expected_ettr
from slurmtrain.report.intervals import timeline
from slurmtrain.report.windows import Story
from tests.report.stories import ACTS, ATTEMPTS, EVENTS, SECOND, T0, act, attempt, event, start, step, story

# Worked out by hand from the table of stories.py, in seconds.
DETAIL = {
    "pending": 60,
    "requeue": 120,
    "check": 4 + 1 + 1,
    "launch": 6.5 + 1 + 1,
    "python": 18,
    "mpi": 6,
    "group": 3.5,
    "build": 4 + 1 + 3 + 3,
    "load": 2,
    "productive": 80,
    "redone": 30 + 7,
    "checkpoint": 0.25 + 0.25 + 0.25 + 1.75 + 2,
    "evaluation": 6,
    "detection": 2,
    "ending": 3 + 1.5 + 0.5,
    "restart": 10,
    "other": 0.5,
}


def seconds(times):
    return {name: took / SECOND for name, took in times.items() if took}


def test_every_second_is_where_it_belongs():
    told = accounts(story())
    assert seconds(told.detail_us) == DETAIL
    assert told.wall_us == 380 * SECOND == sum(told.parts_us.values())
    assert seconds(told.parts_us) == {
        "queue": 180,
        "startup": 55,
        "productive": 80,
        "redone": 37,
        "checkpoint": 4.5,
        "evaluation": 6,
        "detection": 2,
        "restart": 15,
        "other": 0.5,
    }
    assert (told.kept_steps, told.redone_steps, told.saves, told.faults, told.attempts) == (8, 3, 4, 1, 3)
    assert told.notes == ()


def test_gpu_hours_are_all_that_the_job_had():
    told = accounts(story())
    assert told.billed_us == ((91 + 10 + 61.5) * 12 + 37.5 * 8) * SECOND
    assert told.gpu_us["spares"] == (91 + 10 + 61.5) * 4 * SECOND
    assert told.gpu_us["productive"] == 80 * 8 * SECOND
    assert "queue" not in told.gpu_us
    assert told.useful_gpu_share == pytest.approx(640 / 2250)


def test_ratios_by_their_definitions():
    told = accounts(story())
    assert told.ettr == pytest.approx(80 / 380)
    assert told.ettr_without_queue == pytest.approx(80 / 200)
    assert told.scheduling == pytest.approx(200 / 380)
    assert told.program == pytest.approx((60 * 0.4 + 20 * 0.5) / 80)
    assert told.ml_productivity == pytest.approx(200 / 380 * 80 / 200 * 0.425)
    assert told.expected_ettr == pytest.approx((1 - (30 + 20 / 2) / 200) / (1 + 1.125 / 20))


def test_what_each_cause_cost():
    causes = accounts(story()).causes
    crash, limit, finished = causes["rank_crash"], causes["time_limit"], causes["finished"]
    assert (crash.ends, crash.mttd_s, crash.mttr_s) == (1, 2, 40)
    assert crash.lost_us == (37 + 2 + 3 + 10 + 15) * SECOND
    assert crash.lost_gpu_us == 67 * 8 * SECOND
    assert (limit.ends, limit.mttd_s, limit.mttr_s) == (1, None, 145)
    assert (limit.lost_us, limit.lost_gpu_us) == (136.5 * SECOND, 16.5 * 8 * SECOND)
    assert (finished.ends, finished.lost_us, finished.mttr_s) == (1, 0, None)


def test_a_line_that_is_torn_moves_its_time_to_other_and_nothing_else():
    whole, torn = accounts(story()), accounts(story([one for one in EVENTS if one.fields.get("step") != 7]))
    assert torn.wall_us == whole.wall_us
    assert torn.detail_us["productive"] == whole.detail_us["productive"] - 10 * SECOND
    assert torn.detail_us["build"] == whole.detail_us["build"] + 10 * SECOND, "the first step is then the second"
    torn = accounts(story([one for one in EVENTS if one.fields.get("step") != 2]))
    assert torn.detail_us["other"] == whole.detail_us["other"] + 10 * SECOND


def test_records_of_an_earlier_release_say_less_and_add_up_all_the_same():
    old = [replace(one, t_checked=None, t_ranks=None) for one in ATTEMPTS]
    old[0] = replace(old[0], outcome=replace(old[0].outcome, category=None, fault_t=None, seen_t=None))
    events = [replace(one, fields={k: v for k, v in one.fields.items() if k != "startup"}) for one in EVENTS]
    told = accounts(story(events, attempts=old))
    assert sum(told.detail_us.values()) == told.wall_us == 380 * SECOND
    assert told.detail_us["startup"] == (24 + 15 + 15) * SECOND
    assert told.detail_us["other"] == (0.5 + 12) * SECOND, "from the last step to the end nobody knows"
    assert {"failed", "time_limit", "finished"} == set(told.causes)
    assert any("when its fault happened" in note for note in told.notes)
    assert any("start-up is not told" in note for note in told.notes)


def test_an_attempt_without_a_word_ends_with_its_newest_event():
    silent = [attempt(1, 60), *ATTEMPTS[1:]]
    silent[1], silent[2] = replace(silent[1], restart_count=1), replace(silent[2], restart_count=2)
    told = accounts(story(attempts=silent))
    assert told.wall_us == 380 * SECOND
    assert told.detail_us["requeue"] == (120 + 161 - 139) * SECOND
    assert told.causes["unknown"].ends == 1
    assert told.faults == 1
    assert any("without a word" in note for note in told.notes)


def test_a_run_that_goes_on_is_counted_up_to_now():
    running = story(EVENTS[:6], attempts=[attempt(1, 60, t_checked=63)], acts=ACTS[:2], now=T0 + 130)
    told = accounts(running)
    assert told.wall_us == 130 * SECOND
    assert told.causes == {}
    assert told.detail_us["other"] == (0.5 + 4.25) * SECOND, "a step that is under way is nothing yet"
    waiting = accounts(story(EVENTS[:17], attempts=ATTEMPTS[:2], acts=ACTS[:3], now=T0 + 300, waits=True))
    assert waiting.detail_us["requeue"] == 77.5 * SECOND
    assert waiting.gpu_us["restart"] == (3 + 10 + 1.5) * 8 * SECOND


def test_nothing_to_account_for():
    with pytest.raises(ValueError, match="nobody has asked"):
        accounts(Story())
    told = accounts(Story(acts=[act(0, "submit"), act(50, "cancel")]))
    assert (told.wall_us, told.ettr, told.useful_gpu_share) == (50 * SECOND, 0.0, None)
    assert seconds(told.detail_us) == {"pending": 50}


def test_steps_that_are_trained_again_within_an_attempt():
    """A way back to the last good checkpoint: what came after it is done again, in the same attempt."""
    events = [start(1, 70), *(step(1, 80 + 10 * i, which) for i, which in enumerate([1, 2, 3, 4]))]
    events += [event(1, 114, "rollback", step=4, to=2, seconds=3), *(step(1, 124 + 10 * i, which) for i, which in enumerate([3, 4, 5]))]
    told = accounts(story(events, attempts=[attempt(1, 60, 150, category="stopped", kind="stopped")], acts=[]))
    assert (told.kept_steps, told.redone_steps) == (5, 2)
    assert told.detail_us["redone"] == 20 * SECOND
    numerical, stopped = told.causes["numerical"], told.causes["stopped"]
    assert (numerical.ends, numerical.lost_us, numerical.lost_gpu_us) == (0, 23 * SECOND, 23 * 8 * SECOND)
    assert (stopped.ends, stopped.lost_us, told.faults) == (1, 0, 0)
    kinds = [one.kind for one in timeline(story(events, attempts=[attempt(1, 60, 150)], acts=[]))]
    assert kinds == ["startup", *["productive"] * 2, *["redone"] * 2, "other", "restart", *["productive"] * 3, "other"]


def test_steps_of_an_early_attempt_are_lost_when_a_late_one_goes_back_behind_them():
    """The checkpoint of step 4 was damaged: the third attempt begins from step 2, and what two attempts did beyond it is lost."""
    events = [start(1, 10), *(step(1, 10 + which, which, 1) for which in (1, 2, 3, 4))]
    events += [start(2, 20, 4), step(2, 21, 5, 1), start(3, 30, 2), *(step(3, 28 + which, which, 1) for which in (3, 4, 5, 6))]
    told = accounts(story(events, attempts=[attempt(n, 10 * n, 10 * n + 9, restarts=n) for n in (1, 2, 3)], acts=[]))
    assert (told.kept_steps, told.redone_steps) == (2 + 4, 2 + 1)


def test_time_in_which_nobody_had_asked_for_a_job_is_not_available():
    asked = [act(0, "submit"), act(90, "submit", "8")]
    events = [step(1, 20, 1), step(2, 110, 2)]
    told = accounts(story(events, attempts=[attempt(1, 10, 20), attempt(2, 100, 110, job="8")], acts=asked))
    assert told.wall_us == 110 * SECOND
    assert told.ettr == pytest.approx(20 / 40), "70 s were nobody's"
    assert told.scheduling == pytest.approx(20 / 40)
    assert told.ettr_without_queue == 1.0


# N, r_f, w_cp s, u0 s, dt s -> E[ETTR]: published rates put into the published formula (arXiv 2410.21680), by another hand.
PUBLISHED = [
    ((256, 6.5e-3, 300, 300, 3600), 0.8857),
    ((512, 6.5e-3, 300, 300, 3600), 0.8484),
    ((2048, 2.34e-3, 60, 300, 600), 0.8788),
    ((2048, 3.79e-3, 60, 600, 1800), 0.8373),
]


@pytest.mark.parametrize(("given", "ettr"), PUBLISHED)
def test_the_formula_gives_the_published_figures(given, ettr):
    nodes, rate, stall, restart, interval = given
    found = expected_ettr(faults_per_day=nodes * rate, restart_s=restart, stall_s=stall, interval_s=interval)
    assert found == pytest.approx(ettr, abs=1e-4)
