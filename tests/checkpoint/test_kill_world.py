"""Ranks in processes of their own, their writers, the one that commits, or all at once killed with -9 at random moments of saves.

There is always a newest checkpoint whose values are right, no less than what was said to be durable; the next attempt, which may begin
while writers of the last one still live, goes on from there; a run whose writers alone die goes on by itself; nothing piles up.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_verified, steps_present
from slurmtrain.store.verify import verify
from tests.checkpoint.arrays import wrong_tensors
from tests.checkpoint.crash_doors import slow_door
from tests.checkpoint.doors import until
from tests.checkpoint.staging import gone, names

ROOT = Path(__file__).resolve().parents[2]
RANKS = 3
KINDS = ("rank", "rank 0", "writer", "committer", "rank and writer", "all ranks", "all writers", "all")
LIVES = {"writer", "committer", "all writers"}
"""What ranks outlive."""
PAUSE_S = 0.002
WINDOW_S = 0.12


class World:
    """The program kill_world.py."""

    def __init__(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, "-m", "tests.checkpoint.kill_world"]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)

    def order(self, run, attempt, *, steps=1000, sizes=(), door=""):
        order = {"run": str(run.path), "attempt": attempt, "ranks": RANKS, "sizes": sizes, "steps": steps, "door": door, "grace_s": 0.05}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        assert line, "the program has ended"
        word, rank, number = line.split()
        return word, int(rank), int(number)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(30)


class Trial:
    """One attempt. What it said: the step it came `back` from, steps `done` and `failed`, pids by rank."""

    def __init__(self, world, run, attempt, chance):
        self.chance, self.world = chance, world
        self.kind = KINDS[attempt % len(KINDS)]
        self.back, self.done, self.failed, self.wrong = -1, [], [], []
        self.ranks, self.writers, self.servers, self.all_writers = {}, {}, {}, []
        self.handles = {}
        """By number: of these very processes, so that no number that may be another's is ever signalled."""
        owner = {"job_id": "7", "restart_count": attempt, "attempt": attempt, "host": "h", "pid": 1, "t": 0.0}
        (run.path / "owner.tmp").write_text(json.dumps(owner))
        (run.path / "owner.tmp").rename(run.owner_json)
        world.order(run, attempt, sizes=((), (2, 1), (3,))[attempt % 3], door=slow_door(PAUSE_S))

    def play(self):
        begun, kill_in, code = 0, self.chance.randrange(1, 3), None
        while code is None:
            word, rank, number = self.world.hear()
            if word in {"pid", "writer", "server"}:
                with suppress(ProcessLookupError):
                    self.handles[number] = os.pidfd_open(number)
            if word == "begin":
                begun += 1
                self._at_begin(begun, kill_in)
            elif word == "writer":
                self.writers[rank] = number
                self.all_writers.append(number)
            elif word in {"pid", "server"}:
                (self.ranks if word == "pid" else self.servers)[rank] = number
            elif word == "from":
                self.back = number
            elif word == "ended":
                code = number
            else:
                getattr(self, word).append(number)
        for handle in self.handles.values():
            os.close(handle)
        assert code != 0

    def _at_begin(self, begun, kill_in):
        """Ranks that outlive the first blow train on, and are all killed some saves later."""
        if begun == kill_in:
            self._blow(self.kind)
        elif self.kind in LIVES and begun == kill_in + 2:
            self._blow("all ranks")

    def _blow(self, kind):
        time.sleep(self.chance.random() * WINDOW_S)
        rank = self.chance.randrange(RANKS)
        writers = sorted(self.writers)
        pids = {
            "rank": [self.ranks[rank]],
            "rank 0": [self.ranks[0]],
            "writer": [self.writers[self.chance.choice(writers)]],
            "committer": [self.writers[0]],
            "rank and writer": [self.ranks[rank], self.writers.get(rank, self.ranks[rank])],
            "all ranks": [*self.ranks.values()],
            "all writers": [*self.writers.values()],
            "all": [*self.ranks.values(), *self.writers.values(), *self.servers.values()],
        }[kind]
        for pid in pids:
            with suppress(ProcessLookupError, KeyError):
                signal.pidfd_send_signal(self.handles[pid], signal.SIGKILL)


@pytest.mark.parametrize("trials, seed", [pytest.param(16, 1, marks=pytest.mark.long), pytest.param(200, 2, marks=pytest.mark.long)])
def test_killed_at_random(tmp_path, trials, seed):
    run, chance, world = RunDir(tmp_path / "run"), random.Random(seed), World()
    run.create()
    durable, failed, in_staging, writers = 0, 0, 0, set()
    try:
        for attempt in range(1, trials + 1):
            trial = Trial(world, run, attempt, chance)
            trial.play()
            writers |= set(trial.all_writers)
            said = (attempt, trial.kind, trial.back, trial.done, trial.failed)
            assert trial.wrong == [], said
            assert trial.back >= durable, said
            if chance.random() < 0.6:
                until(lambda: all(map(gone, writers)))  # noqa: B023 at once
            in_staging += any(name.endswith(".tmp") for name in names(run))
            found = newest_verified(run.checkpoints)
            assert found is not None or not trial.done, said
            if found is not None:
                assert (found.passed_over, wrong_tensors(found)) == ((), []), said
                assert found.step >= max([*trial.done, durable]), (*said, "a step that was said to be durable is gone")
                durable = found.step
            assert len([name for name in names(run) if not name.startswith("step-")]) <= 4, (*said, names(run))
            assert len(steps_present(run.checkpoints)) <= 3, (*said, names(run))
            failed += len(trial.failed)
        assert failed >= trials // 12, "too few saves failed"
        assert in_staging >= trials // 5, "too few kills fell into saves"
        until(lambda: all(map(gone, writers)))
        durable = newest_verified(run.checkpoints).step
        run.owner_json.unlink()
        world.order(run, trials + 1, steps=2, sizes=(2, 1))
        heard = []
        while not heard or heard[-1][0] != "ended":
            heard.append(world.hear())
        assert heard[-1] == ("ended", 0, 0)
        assert names(run) == [f"step-{durable + 10:08d}", f"step-{durable + 20:08d}"], "leftovers are cleared"
        assert [verify(run.checkpoint(step)) for step in steps_present(run.checkpoints)] == [[], []]
        until(lambda: all(gone(number) for word, _, number in heard if word == "writer"))
        print(f"{trials} trials, seed {seed}: {in_staging} in the midst of a save, {failed} saves failed, step {durable}")
    finally:
        world.close()
