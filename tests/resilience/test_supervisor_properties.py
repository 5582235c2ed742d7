"""The real supervisor over any sequence of attempts' ends, in job after job, on a stage: it ends, keeps to its budget, and obeys people."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmtrain.resilience.records import read_attempts
from slurmtrain.resilience.signals import NOTICE, TERM
from slurmtrain.store.listing import newest_durable_step
from tests.resilience.stage import PEER, Stage

LAST = 1000
ENDS = ("crash", "memory", "storage", "peers", "killed", "config", "finish", "notice", "scancel", "limit", "stop", "requeued", "silent")
BY_PERSON = {"scancel": "cancelled", "stop": "stopped"}
ends = st.tuples(st.sampled_from(ENDS), st.booleans())
"""What ends an attempt, and whether it saves something newer before."""


def error(stage: Stage, words: str) -> None:
    for rank in range(stage.world):
        stage.record(rank, "error", words if rank == 1 else PEER, code=1)
    stage.leave()


def deed_of(stage: Stage, what: str) -> Callable[[], object]:
    """What happens to the attempt that runs."""

    def by_slurm(**job: object) -> None:
        stage.job(**job)
        stage.signals.receive(TERM)

    return {
        "crash": lambda: error(stage, "ValueError: bad token"),
        "memory": lambda: error(stage, "MemoryError"),
        "storage": lambda: error(stage, "OSError: [Errno 28] No space left on device"),
        "peers": lambda: error(stage, PEER),
        "killed": lambda: (stage.record(0, "error", PEER, code=1), stage.record(2, "error", PEER, code=1), stage.leave()),
        "config": lambda: stage.everybody("config", "MPI sees 1 rank"),
        "finish": lambda: stage.everybody("finished", ""),
        "notice": lambda: stage.signals.receive(NOTICE),
        "scancel": lambda: by_slurm(state="COMPLETING"),
        "limit": lambda: by_slurm(state="COMPLETING", reason="TimeLimit"),
        "stop": stage.run.stop.touch,
        "requeued": lambda: by_slurm(state="PENDING", reason="BeginTime", restarts=stage.slurm.job(stage.job_id).restarts + 1),
        "silent": stage.leave,
    }[what]


def arrange(stage: Stage, told: list[tuple[str, bool]]) -> None:
    for number, (what, saves) in enumerate(told, start=1):
        stage.at(1.0, lambda: stage.make_step(stage.step + 1), number)
        if saves:
            stage.at(1.5, lambda: stage.save(stage.step), number)
        stage.at(2.0, deed_of(stage, what), number)


def lives(stage: Stage, most: int) -> list[int]:
    """Start after start of the job, as Slurm makes them; the requeues that were asked in each."""
    asked = []
    for restarts in range(1, most + 1):
        before = len(stage.slurm.requeued)
        stage.supervise()
        asked.append(len(stage.slurm.requeued) - before)
        if stage.slurm.job(stage.job_id).state != "PENDING":
            break
        stage.start_again(restarts)
    return asked


@pytest.mark.long
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ends, min_size=1, max_size=10), st.integers(1, 4), st.booleans())
def test_any_sequence_of_ends(told, no_progress, in_place):
    with tempfile.TemporaryDirectory() as folder:
        recovery = {"no_progress": no_progress, "in_place": in_place}
        stage = Stage(Path(folder), nodes=2, gpus=2, behaviour={"steps": LAST}, recovery=recovery)
        told = [*told, ("finish", False)]
        arrange(stage, told)
        durable: list[int] = []
        asked = lives(stage, most=len(told) + 2)
        made = read_attempts(stage.run)
        # it ends, and at most one requeue was asked in each start
        assert len(asked) <= len(told) + 1, f"the job was started {len(asked)} times"
        assert max(asked) <= 1
        # no attempt after a person's word, after the end of the run, or after a wrong configuration
        for record, (what, _) in zip(made[:-1], told, strict=False):
            assert what not in {"scancel", "stop", "config", "finish"}, f"attempt {record.attempt} ended by {what}, and was followed"
        # never more than no_progress attempts in a row without a newer checkpoint
        streak = newest = 0
        for record in made:
            step = record.outcome.last_durable_step or 0
            streak = 0 if step > newest else streak + 1
            newest = max(step, newest)
            durable.append(step)
            assert streak <= no_progress
        # no checkpoint is lost, and FINISHED stands only where all steps were done
        assert durable == sorted(durable)
        assert (newest_durable_step(stage.run.checkpoints) or 0) == max(durable, default=0)
        assert stage.run.finished.exists() == (made[-1].outcome.kind == "finished")
        for record, (what, _) in zip(made, told, strict=False):
            if what in BY_PERSON:
                assert record.outcome.category == BY_PERSON[what]
