"""Ranks and writers killed with -9 at random moments of saves beside the training: there is always a checkpoint that verifies.

A third of the trials kills the ranks, a third a writer, which then is replaced while the ranks go on until they are killed, too; in the
rest a writer dies at a system call chosen by number, some in the middle of a write.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import suppress

import psutil
import pytest

from slurmtrain.rundir import RunDir, staging_attempt
from slurmtrain.store.listing import newest_verified, steps_present
from slurmtrain.store.verify import verify
from tests.checkpoint.doors import until
from tests.checkpoint.kill_driver import Program
from tests.checkpoint.staging import gone, names

NEVER = 10_000


class Trial:
    """One attempt, which is killed in the end. What it said: the step it came `back` from, steps `done` and `failed`."""

    def __init__(self, program, run, attempt, chance):
        self.program, self.chance = program, chance
        self.back, self.done, self.failed, self.writers, self.servers = -1, [], [], [], []
        self.kind = ("ranks", "writer", "call")[attempt % 3]
        deaths = [0, 0]
        if self.kind == "call":
            deaths[chance.randrange(2)] = chance.randrange(1, 60)
        owner = {"job_id": "7", "restart_count": attempt, "attempt": attempt, "host": "h", "pid": 1, "t": 0.0}
        run.owner_json.write_text(json.dumps(owner))
        program.order(run=str(run.path), attempt=attempt, steps=1000, writer_dies_at=deaths)
        word, pid = program.hear()
        assert word == "pid"
        self.child = os.pidfd_open(pid)  # a handle of this very process: no number that may be another's is ever signalled

    def play(self):
        begun, kill_in, code = 0, self.chance.randrange(2, 5), None
        while code is None:
            word, number = self.program.hear()
            if word == "from":
                self.back = number
            elif word == "writer":
                self.writers.append(number)
            elif word == "server":
                self.servers.append(number)
            elif word in {"done", "failed"}:
                (self.done if word == "done" else self.failed).append(number)
            elif word == "ended":
                code = number
            elif word == "begin":
                begun += 1
                self.at_begin(begun, kill_in)
        os.close(self.child)
        until(lambda: all(gone(child.pid) for server in self.servers for child in psutil.Process(server).children()))
        assert code == -signal.SIGKILL

    def at_begin(self, begun, kill_in):
        if begun < kill_in:
            return
        time.sleep(self.chance.random() * 0.05)
        with suppress(ProcessLookupError):  # what is heard may have been said before a kill
            if self.kind == "writer" and begun == kill_in:
                os.kill(self.chance.choice(self.writers), signal.SIGKILL)
            elif self.kind == "ranks" or begun >= kill_in + 3:
                signal.pidfd_send_signal(self.child, signal.SIGKILL)


@pytest.mark.parametrize("trials, seed", [(6, 1), pytest.param(200, 2, marks=pytest.mark.long)])
def test_killed_at_random_there_is_always_a_checkpoint_that_verifies(tmp_path, trials, seed):
    run, chance, program = RunDir(tmp_path / "run"), random.Random(seed), Program()
    run.create()
    durable, failed = 0, 0
    try:
        for attempt in range(1, trials + 1):
            trial = Trial(program, run, attempt, chance)
            trial.play()
            assert trial.back == durable, "resumed from another step than the newest durable one"
            found = newest_verified(run.checkpoints)
            assert found is not None
            assert found.passed_over == ()
            assert found.step >= max([*trial.done, durable]), "a step that was said to be durable is gone"
            assert all(verify(run.checkpoint(step)) == [] for step in steps_present(run.checkpoints))
            litter = [name for name in names(run) if not name.startswith("step-")]
            assert len([name for name in litter if staging_attempt(name) is not None]) <= 1, "litter grows"
            assert len(litter) <= 3
            durable, failed = found.step, failed + len(trial.failed)
        assert failed >= trials // 6, "too few saves failed"
        program.order(run=str(run.path), attempt=trials + 1, steps=2, writer_dies_at=[0, 0])
        run.owner_json.unlink()
        heard = []
        while not heard or heard[-1][0] != "ended":
            heard.append(program.hear())
        assert heard[-1] == ("ended", 0)
        assert names(run) == [f"step-{durable + 10:08d}", f"step-{durable + 20:08d}"], "leftovers are cleared"
    finally:
        program.close()
