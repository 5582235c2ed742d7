"""One owner at a time: who may succeed whom, and that of several at once one alone wins."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace

import psutil
import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.clock import SystemClock
from slurmtrain.errors import OwnershipError
from slurmtrain.resilience.owner import Sight, claim, judge, process_lives, release
from slurmtrain.resilience.records import Owner, read_owner
from slurmtrain.rundir import RunDir
from slurmtrain.slurm.types import JobInfo

OLD = Owner("12", 0, 3, "n1", 4242, 1000.0)
LOCAL = Owner("", 0, 3, "box", 4242, 1000.0)
NEXT_JOB = Owner("13", 0, 0, "n7", 99, 2000.0)


def job(state: str) -> JobInfo:
    return JobInfo("12", "llama", state)


@pytest.mark.parametrize(
    ("name", "old", "me", "sight", "word"),
    [
        ("it said so", replace(OLD, ended=True), NEXT_JOB, Sight("unknown", None), "take"),
        ("old job runs", OLD, NEXT_JOB, Sight(job("RUNNING"), None), "refuse"),
        ("old job will run again", OLD, NEXT_JOB, Sight(job("PENDING"), None), "refuse"),
        ("old job is leaving", OLD, NEXT_JOB, Sight(job("COMPLETING"), None), "wait"),
        ("old job failed", OLD, NEXT_JOB, Sight(job("FAILED"), None), "take"),
        ("Slurm has forgotten it", OLD, NEXT_JOB, Sight(None, None), "take"),
        ("Slurm does not answer", OLD, NEXT_JOB, Sight("unknown", None), "wait"),
        ("a dead supervisor does not mean dead ranks", OLD, NEXT_JOB, Sight(job("RUNNING"), False), "refuse"),
        ("requeued", OLD, replace(OLD, restart_count=1), Sight("unknown", None), "take"),
        ("requeued; another has its pid", OLD, replace(OLD, restart_count=1), Sight("unknown", True), "take"),
        ("twice in one salloc", OLD, replace(OLD, pid=1), Sight("unknown", True), "refuse"),
        ("again in one salloc", OLD, replace(OLD, pid=1), Sight("unknown", False), "take"),
        ("the same process, with its next attempt", OLD, replace(OLD, attempt=0), Sight("unknown", True), "take"),
        ("its pid on another host", OLD, replace(OLD, host="n2"), Sight("unknown", None), "refuse"),
        ("from another node of one salloc", OLD, replace(OLD, host="n2"), Sight("unknown", None), "refuse"),
        ("without Slurm, alive", LOCAL, replace(LOCAL, pid=1), Sight("unknown", True), "refuse"),
        ("without Slurm, killed", LOCAL, replace(LOCAL, pid=1), Sight("unknown", False), "take"),
        ("without Slurm, another host", LOCAL, replace(LOCAL, host="box2"), Sight("unknown", None), "refuse"),
        ("without Slurm before, a job now", LOCAL, NEXT_JOB, Sight("unknown", None), "refuse"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_who_may_succeed_whom(name, old, me, sight, word):
    verdict, why = judge(old, me, sight)
    assert verdict == word
    assert why


def me(pid: int = 1, host: str = "here") -> Owner:
    return Owner("", 0, 0, host, pid, 1000.0)


def take(run: RunDir, owner: Owner, *, lives: bool = False) -> Owner:
    return claim(run, owner, disk=SystemDisk(), clock=SystemClock(), client=None, lives=lambda *_: lives, wait_s=0.0)


def test_the_first_attempt_is_1_and_the_files_tell_of_its_owner(tmp_path):
    run = RunDir(tmp_path)
    mine = take(run, me())
    assert mine.attempt == 1
    assert read_owner(run.owner_json) == read_owner(run.attempt(1).claim) == mine
    assert json.loads(run.owner_json.read_text())["v"] == 1


def test_attempts_count_on_and_old_claims_stay(tmp_path):
    run = RunDir(tmp_path)
    first, second = take(run, me(1)), take(run, me(2))
    assert (first.attempt, second.attempt) == (1, 2)
    assert read_owner(run.attempt(1).claim) == first
    assert read_owner(run.owner_json) == second


def test_a_living_owner_is_named_with_what_to_do(tmp_path):
    run = RunDir(tmp_path)
    take(run, me(4711))
    with pytest.raises(OwnershipError, match=r"pid 4711 on here.*its process lives.*slurmtrain cancel") as caught:
        take(run, me(2), lives=True)
    assert "\n" not in str(caught.value)
    assert run.attempt_numbers() == [1]


def test_a_released_run_is_free_for_anybody(tmp_path):
    run = RunDir(tmp_path)
    release(run, take(run, me(1)), SystemDisk())
    assert take(run, me(2, host="elsewhere"), lives=True).attempt == 2


def test_release_by_one_who_is_owner_no_more_changes_nothing(tmp_path):
    run = RunDir(tmp_path)
    first, second = take(run, me(1)), take(run, me(2))
    release(run, first, SystemDisk())
    assert read_owner(run.owner_json) == second


def test_a_folder_whose_maker_died_before_it_claimed_is_used(tmp_path):
    run = RunDir(tmp_path)
    take(run, me(1))
    run.attempt(2).create()
    assert take(run, me(2)).attempt == 2


def test_of_eight_at_once_one_wins_and_seven_see_it(tmp_path):
    run, won, lost = RunDir(tmp_path), [], []
    take(run, me(1))
    gate = threading.Barrier(8)

    def race(pid: int) -> None:
        gate.wait()
        try:
            # The owner of before (pid 1) is dead, the racers live.
            won.append(claim(run, me(pid), disk=RacingDisk(pid), clock=SystemClock(), client=None, lives=lambda p, _: p != 1, wait_s=0.0))
        except OwnershipError as error:
            lost.append(str(error))

    threads = [threading.Thread(target=race, args=(pid,)) for pid in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(lost) == 7
    assert all(f"pid {won[0].pid}" in line for line in lost)
    assert run.attempt_numbers() == [1, 2]


class RacingDisk(SystemDisk):
    """SystemDisk names its temporary files by process; these racers are threads of one."""

    def __init__(self, name: int) -> None:
        super().__init__()
        self._name = name

    def create_exclusive(self, path, data):
        temporary = path.with_name(f".{path.name}.{self._name}.tmp")
        temporary.write_bytes(data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True


def test_a_process_is_known_by_when_it_began():
    this = psutil.Process()
    assert process_lives(this.pid, this.create_time() + 5)
    assert not process_lives(this.pid, this.create_time() - 60)


def test_waiting_for_a_job_that_is_leaving_ends_with_its_end(tmp_path):
    run = RunDir(tmp_path)
    states = iter(["COMPLETING", "COMPLETING", "COMPLETED"])
    slept: list[float] = []

    class Client:
        def job(self, job_id):
            assert job_id == "12"
            return job(next(states))

    class Clock(SystemClock):
        def sleep(self, seconds):
            slept.append(seconds)

    take(run, replace(OLD, attempt=0))
    mine = claim(run, NEXT_JOB, disk=SystemDisk(), clock=Clock(), client=Client(), wait_s=60.0)
    assert mine.attempt == 2
    assert len(slept) == 2
