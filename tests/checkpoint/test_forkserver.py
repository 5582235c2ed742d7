"""The process that starts writers is stopped, or late: what it says later is no answer to another question."""

from __future__ import annotations

import os
import signal

import pytest

from slurmtrain.checkpoint import forkserver
from slurmtrain.checkpoint.forkserver import ForkServer
from slurmtrain.checkpoint.link import Link
from slurmtrain.checkpoint.staged import AsyncSaver
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from tests.checkpoint.arrays import begin, terms
from tests.checkpoint.doors import until
from tests.checkpoint.staging import gone, writer_pid
from tests.fakes.thread_group import run_ranks


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """After its first answer, for which it loads modules."""
    answer = ForkServer._answer

    def impatient(server):
        try:
            return answer(server)
        finally:
            monkeypatch.setattr(forkserver, "ANSWER_WITHIN_S", 0.5)

    monkeypatch.setattr(ForkServer, "_answer", impatient)


def test_one_that_does_not_answer_is_ended_and_another_takes_its_place(tmp_path):
    run = RunDir(tmp_path)

    def body(group):
        saver = AsyncSaver(terms(run), group)
        try:
            begin(saver, 10, group)
            assert [one.ok for one in saver.wait()] == [True]
            server, writer = saver._link._server._process.pid, writer_pid(saver)
            os.kill(server, signal.SIGSTOP)
            os.kill(writer, signal.SIGKILL)
            for step in (20, 30, 40):
                begin(saver, step, group)
                assert [(one.step, one.ok) for one in saver.wait()] == [(step, True)]
            until(lambda: gone(server))
        finally:
            saver.close()

    run_ranks(1, body)


def test_it_says_that_it_did_not_answer():
    server = ForkServer()
    server.start("").wire.close()
    os.kill(server._process.pid, signal.SIGSTOP)
    with pytest.raises(CheckpointError, match="did not answer within"):
        server.start("")
    assert not server.alive
    server.close()


def test_a_link_without_work_starts_none():
    link = Link(ForkServer(), "")
    assert (link.look(), link.kill()) == (None, "")
    link.close()
