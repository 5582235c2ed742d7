"""Supervisor's decisions and budgets over any sequence of ends: it ends, keeps to its budget, and a person's word stands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from slurmtrain.config.recovery import RecoveryConfig
from slurmtrain.resilience.budget import DEFAULTS, Exhausted, Spent, charge, judge, opened, over
from slurmtrain.resilience.chain import barred
from slurmtrain.resilience.ending import Again, End, Scene, decide_end
from slurmtrain.resilience.records import AttemptRecord, Outcome
from slurmtrain.slurm.types import JobInfo
from slurmtrain.telemetry.causes import CAUSES, NOBODYS_FAULT

KIND = {
    "finished": "finished",
    "stopped": "stopped",
    "time_limit": "requeue",
    "preempted": "requeue",
    "cancelled": "requeue",
    "configuration": "config",
    "node_failure": "node_failure",
    "launch_failure": "launch",
    "prolog_failure": "launch",
}
FAULTS = [cause for cause in CAUSES if cause not in NOBODYS_FAULT]


@dataclass(frozen=True)
class Happened:
    """One attempt: why it ended, whether it saved something newer before, and how things stood."""

    cause: str
    saved: bool
    stepped: bool
    state: str
    reason: str
    grace: bool
    good: int
    own_will: bool
    signal: str
    cancelled: bool
    time_left_s: float | None


happenings = st.builds(
    Happened,
    cause=st.sampled_from(CAUSES),
    saved=st.booleans(),
    stepped=st.booleans(),
    state=st.sampled_from(["RUNNING", "RUNNING", "RUNNING", "COMPLETING", "PENDING"]),
    reason=st.sampled_from(["None", "None", "TimeLimit", "BeginTime"]),
    grace=st.booleans(),
    good=st.integers(0, 3),
    own_will=st.booleans(),
    signal=st.sampled_from(["", "", "TERM", "USR2"]),
    cancelled=st.sampled_from([False, False, False, False, True]),
    time_left_s=st.sampled_from([None, 10.0, 1e5]),
)
recoveries = st.builds(
    RecoveryConfig,
    no_progress=st.integers(1, 5),
    in_place=st.booleans(),
    budgets=st.dictionaries(st.sampled_from([*FAULTS, "time_limit", "preempted"]), st.integers(0, 4), max_size=4),
    backoff_s=st.sampled_from([0.0, 10.0]),
)
modes = st.sampled_from(["requeue", "chain", "segment", "foreground", "mpiexec"])


def scene_of(one: Happened, outcome: Outcome, word, mode: str, *, in_place: bool, last: bool) -> Scene:
    job = None if mode == "mpiexec" else JobInfo("12", "llama", one.state, one.reason, preempt_time=1.0 if one.grace else None)
    return Scene(
        outcome,
        job,
        one.own_will,
        foreground=mode in {"foreground", "mpiexec"},
        segment=mode == "segment",
        chain=mode == "chain",
        last_link=last,
        budget=word,
        cancelled=one.cancelled,
        good=one.good,
        needed=2,
        no_kill=True,
        in_place=in_place,
        time_left_s=one.time_left_s,
    )


@dataclass
class Life:
    """A run under one supervisor after another, as `happened` has it; each End with a requeue, or a link's end, begins another start."""

    mode: str
    recovery: RecoveryConfig
    links: int = 4
    spent: Spent = field(default_factory=Spent)
    number: int = 0
    durable: int = 0
    link: int = 1
    log: list = field(default_factory=list)

    def lives(self, happened: list[Happened]) -> None:
        for one in happened:
            if not self._attempt(one):
                return

    @property
    def job_id(self) -> str:
        return "" if self.mode == "mpiexec" else f"12_{self.link}" if self.mode in {"chain", "segment"} else "12"

    def _attempt(self, one: Happened) -> bool:
        self.number += 1
        self.durable += one.saved
        outcome = Outcome(
            KIND.get(one.cause, "failed"), "because", step=7 if one.stepped else None, last_durable_step=self.durable or None,
            signal=one.signal, category=one.cause,
        )  # fmt: skip
        self.spent = opened(self.spent, self.job_id, None, []) if self.number == 1 else self.spent
        before = self.spent
        self.spent = charge(self.spent, one.cause, self.durable or None, progressed_first_step=one.stepped, attempt=self.number)
        word = judge(self.spent, one.cause, self.recovery)
        self.spent = over(self.spent, word.why) if isinstance(word, Exhausted) else self.spent
        last = self.link >= self.links
        deed = decide_end(scene_of(one, outcome, word, self.mode, in_place=self.recovery.in_place, last=last))
        self.log.append((one, before, self.spent, word, deed))
        return isinstance(deed, Again) or self._next_start(one, outcome, deed, last=last)

    def _next_start(self, one: Happened, outcome: Outcome, end: End, *, last: bool) -> bool:
        """Whether Slurm, or the next link, begins another start after this end."""
        if self.mode in {"chain", "segment"}:
            self.link += 1
            record = AttemptRecord(self.number, "12_1", 0, 0.0, ("n1",), (), 1, 1, outcome=outcome)
            stop = self.mode == "chain" and barred(self.job_id, self.spent, record, cancelled=one.cancelled) is not None
            return not last and not stop and one.cause not in {"finished", "stopped"}
        return end.requeue or (one.state == "PENDING" and end.waits)


@settings(max_examples=120, deadline=None)
@given(modes, recoveries, st.lists(happenings, min_size=1, max_size=25))
def test_any_sequence_of_ends_keeps_to_the_rules(mode, recovery, happened):
    life = Life(mode, recovery)
    life.lives(happened)
    for index, (one, _, spent, word, deed) in enumerate(life.log):
        again = isinstance(deed, Again)
        goes_on = again or deed.requeue
        if one.cause in {"finished", "stopped", "configuration", "cancelled"} or one.cancelled:
            assert not goes_on, "a person's word, and a complete run, stand"
        if isinstance(word, Exhausted):
            assert not goes_on, "the budget is spent"
        if one.state == "COMPLETING" and one.reason == "None" and mode != "mpiexec":
            assert not goes_on, "Slurm is ending the job: scancel is never undone"
        if again:
            assert one.good >= 2, "started again with too few nodes"
            assert recovery.in_place
            assert mode == "mpiexec" or (one.state == "RUNNING" and not one.grace)
            assert not one.own_will, "the job's end is near"
            assert one.signal != "TERM"
            assert one.time_left_s is None or one.time_left_s > 60
            assert one.cause not in NOBODYS_FAULT, "a stop that Slurm asked for is no fault"
        if goes_on and mode in {"chain", "segment", "foreground", "mpiexec"}:
            assert again, "only a job of its own is requeued"
        assert spent.without_progress <= recovery.no_progress or not goes_on
        limit = recovery.budgets.get(one.cause, DEFAULTS.get(one.cause))
        assert limit is None or spent.by_cause.get(one.cause, 0) <= limit or not goes_on
        assert (spent.durable_step or 0) >= max((s.durable_step or 0 for _, _, s, _, _ in life.log[:index]), default=0), (
            "a checkpoint was lost"
        )


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["requeue", "chain"]), recoveries, st.lists(happenings, min_size=14, max_size=14), st.sampled_from(FAULTS))
def test_without_progress_every_run_ends(mode, recovery, happened, cause):
    """Ends that bring nothing: no more attempts than `no_progress` and, beside it, those that a silent corruption may take."""
    stuck = [replace(one, cause=cause if i % 2 else one.cause, saved=False, stepped=True) for i, one in enumerate(happened)]
    life = Life(mode, recovery, links=14)
    life.lives(stuck)
    examined = recovery.budgets.get("silent_corruption", DEFAULTS["silent_corruption"])
    assert len(life.log) <= recovery.no_progress + examined, "attempts without progress end a run, whatever their causes"


@settings(max_examples=60, deadline=None)
@given(recoveries, st.lists(happenings, min_size=1, max_size=20), st.integers(0, 3))
def test_a_chain_that_a_person_ended_makes_no_further_attempt(recovery, happened, when):
    ended = [replace(one, cancelled=i == when) for i, one in enumerate(happened)]
    life = Life("chain", recovery, links=20)
    life.lives(ended)
    assert len(life.log) <= max(when + 1, 1) or when >= len(ended)


@given(st.lists(st.tuples(st.sampled_from(CAUSES), st.integers(0, 5), st.booleans()), max_size=30))
def test_counts_are_those_of_the_attempts_since_the_newest_checkpoint(told):
    """Against a count by another way: look back for the last attempt that brought a step above all before it."""
    spent = Spent()
    for number, (cause, durable, stepped) in enumerate(told, start=1):
        spent = charge(spent, cause, durable or None, progressed_first_step=stepped, attempt=number)
    newest, since = 0, 0
    for index, (_, durable, _) in enumerate(told):
        if durable > newest:
            newest, since = durable, index
    counted: dict[str, int] = {}
    for cause, _, _ in told[since:]:
        if cause not in NOBODYS_FAULT:
            counted[cause] = counted.get(cause, 0) + 1
    assert dict(spent.by_cause) == counted
    assert spent.attempts == tuple(range(since + 1, len(told) + 1))
    brought = since + 1 if newest else 0
    silent = {"finished", "stopped", "cancelled", "silent_corruption"}
    assert spent.without_progress == sum(c not in silent and not (c == "preempted" and not s) for c, _, s in told[brought:])
