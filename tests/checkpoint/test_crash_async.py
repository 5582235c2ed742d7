"""Saves beside the training, whose writers die, or are refused, at each of their system calls, or the power fails behind any.

Every state is the old one or the new one, its values are right, what a rank was told is what a reader finds, the next save of the same
attempt or of the next one succeeds, and nothing stays that is no checkpoint. Ranks are threads, their writers are processes.
"""

from __future__ import annotations

import errno
import json
import random
import shutil

import pytest

from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_verified, steps_present
from slurmtrain.store.verify import verify
from tests.checkpoint import arrays
from tests.checkpoint.arrays import begin, wrong_tensors
from tests.checkpoint.crash_doors import asked_of, log_of, logged_door
from tests.checkpoint.doors import faulty_door
from tests.checkpoint.staging import end_servers, names, savers, writer_pid
from tests.fakes.syscalls import after_power_failure, tree

MOST = 4000
"""Bytes of a write: there are several to a file."""
SHAPES = {"model/w": (60, 50), "model/norm": (40,), "optimizer/norm/exp_avg": (40,), "model/scale": ()}
ALONE, TOGETHER = (), (2,)
CODES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


@pytest.fixture(autouse=True, scope="module")
def _servers():
    yield
    end_servers()


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(arrays, "SHAPES", SHAPES)


def owned_by(run, attempt):
    run.owner_json.write_text(json.dumps({"job_id": "7", "restart_count": 0, "attempt": attempt, "host": "h", "pid": 1, "t": 0.0}))


def with_leftovers(run, step):
    """What the save of this step by attempt 2 has to clear away: an older attempt's half, trash, and a damaged one of the same step."""
    old = run.checkpoint(steps_present(run.checkpoints)[0])
    shutil.copytree(old, run.staging(step, 1))
    shutil.copytree(old, run.trash(5))
    shutil.copytree(old, run.checkpoint(step))
    (run.checkpoint(step) / "manifest.json").write_bytes(b"{}")


def sound(run, step):
    """The newest is of this step, and is right; so is all that is listed."""
    found = newest_verified(run.checkpoints)
    assert found is not None
    assert (found.step, wrong_tensors(found)) == (step, [])
    damaged = {one: problems for one in steps_present(run.checkpoints) if (problems := verify(run.checkpoint(one)))}
    assert [one for one in damaged if one <= step] == []


class World:
    """Two ranks whose savers live through many trials. `at` says which of their writers fails, and how, from its start on."""

    def __init__(self, run, saver, group, rng):
        self.run, self.saver, self.group, self.rng = run, saver, group, rng
        self.step = self.before = 20

    def armed(self, door):
        """A fresh writer with this door."""
        if self.saver._writes:
            self.saver._link.kill()
            self.saver._link._door = door

    def saved(self):
        """Save the next step: (ok, error, notes), the same on all ranks."""
        self.step += 10
        assert begin(self.saver, self.step, self.group, 2) is None
        (outcome,) = self.saver.wait()
        assert outcome.step == self.step
        return outcome

    def trial(self, door, what):
        if self.group.rank == 0:
            with_leftovers(self.run, self.step + 10)
        self.armed(door)
        self.group.barrier()
        outcome = self.saved()
        self.group.barrier()
        if self.group.rank == 0:
            self._judge(outcome, what)
        self.group.barrier()
        self.armed("")
        again = self.saved()
        assert again.ok, (what, again)
        self.group.barrier()
        if self.group.rank == 0:
            sound(self.run, self.step)
            for path in self.run.checkpoints.glob("*.aside-*"):
                shutil.rmtree(path)
            assert names(self.run) == [f"step-{one:08d}" for one in (self.before, self.step)], what
        self.group.barrier()
        self.before = self.step
        return outcome.ok, outcome.error, outcome.notes

    def _judge(self, outcome, what):
        """`before`: the newest but for what the run saves next."""
        run, here = self.run, self.run.checkpoint(self.step)
        assert outcome.error.isprintable(), (what, outcome)
        if outcome.ok or (here.exists() and not verify(here)):  # refused after the rename: there, but maybe not for ever
            sound(run, self.step)
            assert outcome.ok or "fsync_dir checkpoints" in what, (what, outcome)
            self.before = self.step
        else:
            if here.exists():
                shutil.rmtree(here)  # the damaged one that lay there before
            sound(run, self.before)
        litter = [name for name in names(run) if not name.startswith("step-")]
        assert len(litter) <= 3, (what, litter)


def calls_of_a_save(folder, sizes):
    """How many calls each writer makes in a save, with all that it has to clear away."""
    run, log = RunDir(folder / "run"), folder / "log"
    log.mkdir(parents=True)
    begun(run, sizes)
    pids = {}

    def body(saver, group):
        saver.prepare(arrays.source(0, group.rank, group.size))
        pids[group.rank] = writer_pid(saver) if saver._writes else 0
        group.barrier()
        begin(saver, 30, group, 2)
        return saver.wait()[0].ok

    with_leftovers(run, 30)
    assert savers(run, 2, body, sizes=sizes, door=logged_door(log, run.path, most=MOST)) == [True, True]
    asked = asked_of(log)
    return [[(name, path.name) for pid, name, path in asked if pid == pids[rank]] for rank in range(2) if pids[rank]]


def begun(run, sizes):
    """A run of attempt 2 with two checkpoints, in as many files as all that come."""
    run.path.mkdir(parents=True)
    owned_by(run, 2)

    def body(saver, group):
        for step in (10, 20):
            begin(saver, step, group, 2)
        return [one.ok for one in saver.wait()]

    assert savers(run, 2, body, sizes=sizes) == [[True, True]] * 2


def faults_of(calls, rng, share):
    """(rank, door, what) of trials: a writer dies at a call, or in the middle of a write, or is refused it, once or from there on."""
    for rank, asked in enumerate(calls):
        for number, (name, path) in enumerate(asked, 1):
            ways = [("dies", {"cut_at": number, "kill": True})]
            ways += [("dies in", {"cut_at": number, "kill": True, "torn": True})] if name == "pwrite" else []
            nth = number - [one for one, _ in asked[:number]].count("settle")  # which is never refused
            for code in CODES if name != "settle" else ():
                ways += [(f"refused, {errno.errorcode[code]}", {"refusals": [{"code": code, "at": nth, "calls": [], "times": 1}]})]
            ways += [("refused from there on", {"refusals": [{"code": errno.EROFS, "at": nth, "calls": [], "times": None}]})]
            for way, fields in ways:
                if rng.random() < share:
                    yield rank, faulty_door(most=MOST, **fields), f"writer {rank}: {way} {name} {path}, call {number}"


@pytest.mark.parametrize("sizes", [ALONE, TOGETHER], ids=["a file each", "one file"])
@pytest.mark.parametrize("share", [pytest.param(0.04, id="some"), pytest.param(1.0, id="all", marks=pytest.mark.long)])
def test_writers_that_die_or_are_refused_at_any_call(tmp_path, sizes, share):
    calls = calls_of_a_save(tmp_path / "whole", sizes)
    assert len(calls) == (1 if sizes else 2)
    assert len(calls[0]) > 30
    trials = list(faults_of(calls, random.Random(f"{sizes}"), share))
    run = RunDir(tmp_path / "run")
    begun(run, sizes)

    def body(saver, group):
        world = World(run, saver, group, random.Random(7))
        return [world.trial(door if rank == group.rank else "", what) for rank, door, what in trials]

    results = savers(run, 2, body, sizes=sizes, timeout_s=20.0, orphan_s=0.5)
    assert [one for one in results if isinstance(one, BaseException)] == []
    assert results[0] == results[1]
    told = results[0]
    assert len(told) == len(trials) > 8
    ok = [one for one, _, _ in told]
    assert 0 < sum(ok) < len(ok)
    print(f"{len(trials)} trials, {sum(ok)} saved all the same")


@pytest.mark.parametrize("sizes, keep", [(ALONE, 2), (TOGETHER, 9)], ids=["a file each", "one file, all kept"])
@pytest.mark.parametrize("seeds", [pytest.param(2, id="some"), pytest.param(60, id="many", marks=pytest.mark.long)])
def test_a_power_failure_after_any_call_of_any_writer(tmp_path, sizes, keep, seeds):
    """Of two saves, which remove the oldest or not; the calls of both writers are in the order in which they were made."""
    run, log = RunDir(tmp_path / "run"), tmp_path / "log"
    log.mkdir()
    begun(run, sizes)
    with_leftovers(run, 30)
    before, ended = tree(run.path), {}

    def body(saver, group):
        for step in (30, 40):
            begin(saver, step, group, 2)
            assert saver.wait()[0].ok
            group.barrier()
            ended[step] = len(asked_of(log))
            group.barrier()

    assert savers(run, 2, body, sizes=sizes, keep=keep, door=logged_door(log, run.path, most=MOST)) == [None, None]
    calls = log_of(log, before)
    after_power_failure(calls, run.path, tmp_path / "all", random.Random(0))
    seen = set()
    for number in range(ended[40] + 1):
        durable = max(step for step, at in {20: 0, **ended}.items() if at <= number)
        for seed in range(seeds):
            after = RunDir(tmp_path / "after")
            after_power_failure(calls.until(number), run.path, after.path, random.Random(number * seeds + seed))
            found = newest_verified(after.checkpoints)
            assert found is not None, number
            assert found.step in {durable, durable + 10}, (number, seed)
            assert wrong_tensors(found) == [], (number, seed)
            for step in steps_present(after.checkpoints):
                assert step == 30 > durable or verify(after.checkpoint(step)) == [], (number, seed, step)
            seen.add((durable, found.step))
            shutil.rmtree(after.path)
    assert seen >= {(20, 20), (30, 30), (40, 40)}
    assert seen & {(20, 30), (30, 40)}, "a new one that is not durable yet may be there"
