"""What an attempt costs, when a run is over, and what the file holds. Expected numbers are counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmtrain.config.recovery import RecoveryConfig
from slurmtrain.errors import ConfigError
from slurmtrain.resilience.budget import (
    Allowed,
    Exhausted,
    Spent,
    charge,
    check_budgets,
    judge,
    made_a_step,
    opened,
    over,
    read_budget,
    summary,
    write_budget,
)
from slurmtrain.resilience.records import AttemptRecord, Outcome
from slurmtrain.rundir import RunDir
from tests.fakes.disk import FakeDisk

PATIENT = RecoveryConfig(no_progress=100)


def ends(*causes: str, durable: int | None = None, spent: Spent | None = None) -> Spent:
    spent = spent or Spent()
    for cause in causes:
        spent = charge(spent, cause, durable, progressed_first_step=True)
    return spent


def attempt(number: int, category: str | None, durable: int | None = None, *, step: int | None = 5, job: str = "12") -> AttemptRecord:
    outcome = None if category is None else Outcome("failed", "because", node="n2", step=step, last_durable_step=durable, category=category)
    return AttemptRecord(number, job, 0, 0.0, ("n1", "n2"), (), 1, 2, outcome=outcome)


@pytest.mark.parametrize(
    ("cause", "allowed"),
    [
        ("configuration", 0),
        ("rank_crash", 2),
        ("numerical", 2),
        ("out_of_memory", 2),
        ("launch_failure", 2),
        ("hang", 5),
        ("network", 5),
        ("storage", 5),
        ("node_failure", 20),
    ],
)
def test_how_many_attempts_may_end_by_a_cause(cause, allowed):
    for count in range(1, allowed + 2):
        word = judge(ends(*[cause] * count), cause, PATIENT)
        assert isinstance(word, Allowed if count <= allowed else Exhausted), f"after {count}"
    assert f"the budget allows {allowed}" in word.why


@pytest.mark.parametrize("cause", ["time_limit", "preempted"])
def test_what_slurm_does_is_free(cause):
    assert judge(ends(*[cause] * 99), cause, PATIENT) == Allowed(0.0)


def test_the_job_files_numbers_replace_ours():
    wish = RecoveryConfig(no_progress=100, budgets={"rank_crash": 5, "time_limit": 1})
    assert isinstance(judge(ends(*["rank_crash"] * 5), "rank_crash", wish), Allowed)
    assert isinstance(judge(ends(*["rank_crash"] * 6), "rank_crash", wish), Exhausted)
    assert isinstance(judge(ends("hang", "hang"), "hang", wish), Allowed)


def test_a_name_that_is_no_cause_is_refused_with_near_ones():
    with pytest.raises(ConfigError, match=r"job.toml: recovery.budgets.rank_crsh = 5: .*did you mean 'rank_crash'"):
        check_budgets(RecoveryConfig(budgets={"rank_crsh": 5}), where="job.toml")
    with pytest.raises(ConfigError, match=r"recovery\.budgets\.finished"):
        check_budgets(RecoveryConfig(budgets={"finished": 5}), where="job.toml")
    check_budgets(RecoveryConfig(budgets={"hang": 0, "preempted": 9}), where="job.toml")


def test_pauses_grow_and_are_bounded():
    wish = RecoveryConfig(no_progress=100, budgets={"hang": 100}, backoff_s=10, backoff_max_s=65)
    told = [judge(ends(*["hang"] * count), "hang", wish).delay_s for count in range(1, 7)]
    assert told == [0, 10, 20, 40, 65, 65]
    assert judge(ends(*["node_failure"] * 9), "node_failure", wish).delay_s == 0
    assert judge(ends(*["hang"] * 99), "hang", wish.model_copy(update={"backoff_max_s": 600.0})).delay_s == 600


def test_a_newer_checkpoint_alone_makes_all_free_again():
    spent = ends("hang", "rank_crash", "time_limit", durable=10)
    assert (spent.durable_step, spent.without_progress, dict(spent.by_cause)) == (10, 2, {"hang": 1, "rank_crash": 1})
    assert dict(ends("hang", durable=10, spent=spent).by_cause) == {"hang": 2, "rank_crash": 1}
    assert dict(ends("hang", durable=9, spent=spent).by_cause) == {"hang": 2, "rank_crash": 1}, "an older one came into sight"
    fresh = ends("hang", durable=20, spent=spent)
    assert (fresh.durable_step, fresh.without_progress, dict(fresh.by_cause)) == (20, 0, {"hang": 1})


@pytest.mark.parametrize(
    ("told", "stuck"),
    [
        ([], 0),
        ([("time_limit", None)], 1),
        ([("time_limit", None)] * 3, 3),
        ([("time_limit", 10)] * 3, 2),
        ([("time_limit", 10), ("time_limit", 20)], 0),
        ([("time_limit", 10), ("node_failure", 10), ("rank_crash", 10)], 2),
        ([("time_limit", None), ("preempted", None, False), ("time_limit", None)], 2),
        ([("time_limit", None), ("preempted", None, True)], 2),
        ([("rank_crash", None, False)] * 3, 3),
        ([("rank_crash", None), ("stopped", None)], 1),
    ],
)
def test_attempts_without_a_newer_checkpoint_are_counted_whatever_their_cause(told, stuck):
    spent = Spent()
    for cause, durable, *stepped in told:
        spent = charge(spent, cause, durable, progressed_first_step=(stepped or [True])[0])
    assert spent.without_progress == stuck


@pytest.mark.parametrize(
    ("step", "durable", "made"),
    [(None, None, False), (0, None, False), (1, None, True), (100, 100, False), (None, 100, False), (101, 100, True)],
)
def test_an_attempt_that_went_on_from_a_checkpoint_and_made_no_step_is_told_by_its_end(step, durable, made):
    """Broken: a run that is preempted three times while it loads is over."""
    assert made_a_step(Outcome("requeue", "b", step=step, last_durable_step=durable)) is made


def test_the_third_attempt_without_progress_ends_the_run():
    wish = RecoveryConfig()
    assert isinstance(judge(ends("node_failure", "time_limit"), "time_limit", wish), Allowed)
    word = judge(ends("node_failure", "time_limit", "hang"), "hang", wish)
    assert word == Exhausted("3 attempts in a row brought no newer checkpoint")


def test_an_attempt_is_charged_once():
    """Broken: an attempt that its supervisor and its deputy both charge spends the budget twice."""
    once = charge(Spent(), "hang", None, progressed_first_step=True, attempt=4)
    assert charge(once, "node_failure", None, progressed_first_step=True, attempt=4) == once
    assert charge(once, "hang", None, progressed_first_step=True, attempt=3) == once


def test_attempts_whose_supervisor_died_are_charged_by_the_next_one():
    spent = replace(ends("hang", durable=10), job_id="12", attempt=1)
    now = opened(spent, "12", 10, [attempt(1, "hang", 10), attempt(2, None), attempt(3, "storage", 10)])
    assert (now.attempt, now.without_progress, dict(now.by_cause)) == (3, 2, {"hang": 1, "node_failure": 1, "storage": 1})
    assert opened(now, "12", 10, [attempt(1, "hang", 10), attempt(2, None), attempt(3, "storage", 10)]) == now


def test_a_resubmission_begins_to_count_anew_from_the_checkpoint_that_is_there_and_keeps_what_the_causes_cost():
    spent = replace(over(ends("rank_crash", "rank_crash", "rank_crash", durable=100), "spent"), job_id="12", attempt=3)
    now = opened(spent, "13", 10, [attempt(n, "rank_crash", 100) for n in (1, 2, 3)])
    assert (now.job_id, now.durable_step, now.without_progress, dict(now.by_cause), now.over) == ("13", 10, 0, {"rank_crash": 3}, "")
    assert isinstance(judge(charge(now, "rank_crash", 10, progressed_first_step=True, attempt=4), "rank_crash", PATIENT), Exhausted)
    assert dict(charge(now, "rank_crash", 20, progressed_first_step=True, attempt=4).by_cause) == {"rank_crash": 1}, "20 is newer than 10"


def test_links_of_an_array_are_one_job_and_a_start_without_slurm_is_always_a_persons():
    linked = opened(replace(ends("hang"), job_id="12", attempt=1), "12_2", None, [attempt(1, "hang", job="12_1")])
    assert linked.without_progress == 1
    assert opened(replace(ends("hang"), attempt=1), "", None, []).without_progress == 0


def test_the_file_holds_it_and_a_damaged_one_is_none(tmp_path):
    run = RunDir(tmp_path)
    assert read_budget(run) == Spent()
    spent = Spent("12", 4, 100, 2, {"hang": 1}, (3, 4), "why")
    write_budget(run, FakeDisk(), spent)
    assert read_budget(run) == spent
    for damage in (
        b"",
        b"{",
        b"[]",
        b'{"by_cause": 7}',
        b'{"attempts": ["x"]}',
        b'{"by_cause": {"a": null}}',
        b'{"attempt": "x"}',
        b'{"durable_step": []}',
        b"[" * 99999,
    ):
        run.budget_json.write_bytes(damage)
        assert read_budget(run) == Spent()


def test_the_summary_is_a_line_for_each_attempt_since_the_checkpoint():
    records = [attempt(1, "hang", 10), attempt(2, "rank_crash", 10, step=None), attempt(3, None)]
    lines = summary(records, Spent(attempts=(2, 3)))
    assert lines == ["attempt 2: rank crash on n2 before the first step: because", "attempt 3: ended without a word"]
