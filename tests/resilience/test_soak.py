"""Random faults, one after another, on a stage: what must hold of every run, whatever it met. Seeds are printed on failure (SOAK_SEED)."""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from slurmtrain.errors import EXIT_NO_RESTART
from slurmtrain.report.folder import read_story
from slurmtrain.report.goodput import accounts
from slurmtrain.resilience.budget import DEFAULTS
from slurmtrain.resilience.records import AttemptRecord
from slurmtrain.resilience.supervisor import Summary
from tests.resilience.soak_faults import meet
from tests.resilience.soak_stage import SHAPES, SoakStage

FAULTS, A_RUN = 2000, 25
QUICK = 400
SEED = int(os.environ.get("SOAK_SEED", "1"))


class Soak:
    """One run, from its first submission to FINISHED, and what is looked at behind each start."""

    def __init__(self, folder: Path, shape: str, seed: int, faults: int) -> None:
        self.stage = SoakStage(folder, shape, random.Random(seed), self._meet)
        self.stage.steps = 10_000
        self._faults, self.codes = faults, Counter[object]()

    def _meet(self, stage: SoakStage) -> None:
        """So many faults; then the ranks are let finish."""
        if stage.met.total() < self._faults:
            meet(stage)
        else:
            stage.steps = stage.step + 2

    def live(self) -> None:
        stage = self.stage
        stage.submit()
        for _ in range(4 * self._faults):
            asked = len(stage.slurm.requeued)
            stage.give()
            summary = stage.script()
            stage.clock.forget()
            stage.disk.full, stage.disk.slow_s, stage.slurm.down = False, 0.0, False
            self.codes[summary.code if summary else "killed"] += 1
            self._behind_a_start(summary, len(stage.slurm.requeued) - asked)
            if stage.run.finished.exists():
                return
            self._goes_on(summary)
        pytest.fail("the run does not finish")

    def _goes_on(self, summary: Summary | None) -> None:
        """A requeued job starts again, the next link of a chain, or a person resumes the run."""
        stage = self.stage
        stage.clock.advance(30.0)
        if stage.shape == "chain":
            stage.job(state="COMPLETED", end_time=stage.clock.time())
            over = summary is None or summary.code not in {0, 1} or stage.link >= 10 or stage.run.stop.exists()
            cancelled = summary is not None and summary.outcome == "cancelled"
            if over or cancelled:
                stage.submit()
        elif stage.job().state != "PENDING":
            stage.job(state="COMPLETED" if summary and not summary.code else "FAILED", end_time=stage.clock.time())
            stage.submit()

    # --- what must hold

    def _behind_a_start(self, summary: Summary | None, requeues: int) -> None:
        stage = self.stage
        stage.check(requeues <= 1, f"{requeues} requeues asked")
        stage.check(stage.shape != "chain" or not requeues, "a link was requeued")
        records = stage.attempts()
        self._records(records, summary)
        self._within_the_budget(records)
        self._codes(records, summary)
        self._avoided()
        if stage.turn % 4 == 0 or stage.run.finished.exists():
            self._accounts()
        assert not stage.found, stage.found

    def _accounts(self) -> None:
        told = accounts(read_story(self.stage.run))
        made = sum(told.parts_us.values())
        self.stage.check(made == told.wall_us, f"the accounts make {made} us of {told.wall_us}")
        self.stage.check(not self.stage.run.finished.exists() or told.kept_steps == self.stage.steps, f"{told.kept_steps} steps are kept")

    def _records(self, records: list[AttemptRecord], summary: Summary | None) -> None:
        stage = self.stage
        for before, after in pairwise(records):
            ended = before.outcome
            same = (before.job_id, before.restart_count) == (after.job_id, after.restart_count)
            stage.check(
                not same or ended or before.attempt in stage.excused, f"attempt {before.attempt} was not closed by the next of its start"
            )
            stage.check(ended is None or ended.t_end <= after.t_start, f"attempt {after.attempt} began before {before.attempt} ended")
        if summary is not None and summary.attempt in {r.attempt for r in records}:
            newest = next(r for r in records if r.attempt == summary.attempt)
            stage.check(newest.outcome or newest.attempt in stage.excused, "a supervisor left its attempt open")

    def _within_the_budget(self, records: list[AttemptRecord]) -> None:
        """No job makes a further attempt after three in a row without a newer checkpoint; those with a full disk could not be counted."""
        lost, best, job = 0, 0, ""
        for record in records:
            array = record.job_id.partition("_")[0]
            lost = 0 if array != job else lost
            self.stage.check(lost < 3, f"attempt {record.attempt} of job {array} came after {lost} without a newer checkpoint")
            step, job = self._durable(record), array
            known = record.outcome is not None and record.outcome.category not in {"preempted", "finished", "stopped", "cancelled"}
            lost = 0 if step > best or record.attempt in self.stage.excused else lost + known
            best = max(best, step)

    def _codes(self, records: list[AttemptRecord], summary: Summary | None) -> None:
        stage = self.stage
        finished = stage.run.finished.exists()
        stage.check(not finished or stage.good == stage.steps, f"FINISHED at step {stage.good} of {stage.steps}")
        if summary is None:
            return
        stage.check((summary.outcome == "finished") <= finished or stage.excused, "finished, and no FINISHED")
        if summary.code == EXIT_NO_RESTART and not stage.excused:
            stage.check(self._spent(records), f"93: {summary.cause}, and the budget is not spent")

    def _spent(self, records: list[AttemptRecord]) -> bool:
        """Counted anew: attempts at the end that brought no newer checkpoint, all and by cause."""
        lost: list[str] = []
        for record, step in zip(reversed(records), reversed([self._durable(r) for r in records]), strict=True):
            lost.append(record.outcome.category or "" if record.outcome else "node_failure")
            if step > max((self._durable(r) for r in records if r.attempt < record.attempt), default=0):
                break
        causes = Counter(lost)
        return len(lost) >= 3 or any(causes[cause] > limit for cause, limit in DEFAULTS.items())

    @staticmethod
    def _durable(record: AttemptRecord) -> int:
        return (record.outcome.last_durable_step or 0) if record.outcome else 0

    def _avoided(self) -> None:
        stage, now = self.stage, self.stage.clock.time()
        for node, entry in stage.avoided().items():
            stage.check(entry["reason"] and entry["evidence"] and entry["attempt"] in stage.run.attempt_numbers(), f"exclude.json: {entry}")
            stage.check(node in stage.guilty, f"{node} is avoided, and never had a fault: {entry}")
            stage.check(entry["until"] <= now + 24 * 3600, f"{node} is avoided until {entry['until']}")


@pytest.fixture
def memory(tmp_path):
    """A folder in memory, where there is one: thousands of small files."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else tmp_path) as folder:
        yield Path(folder)


def soak(folder: Path, shape: str, faults: int, seed: int) -> None:
    """So many faults, in runs of A_RUN."""
    runs, met = -(-faults // A_RUN // len(SHAPES)), Counter[str]()
    for number in range(runs):
        one = Soak(folder / f"{seed + number}", shape, seed + number, A_RUN)
        try:
            one.live()
        except BaseException:
            print(f"shape {shape}, seed {seed + number}; codes {dict(one.codes)}")
            print("\n".join(one.stage.lines[-60:]))
            raise
        met += one.stage.met
    assert met.total() >= runs * A_RUN


@pytest.mark.parametrize("shape", SHAPES)
def test_runs_that_meet_one_fault_after_another_finish(memory, shape):
    soak(memory, shape, QUICK, 1000 * SEED)


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_two_thousand_faults(memory, shape):
    soak(memory, shape, FAULTS, 1000 * SEED + 500)
