"""One node's agent: its reports, its orders, and when it goes; as a value, and as a process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from slurmtrain.resilience.agent import DONE_WORDS, IDLE_S, LINES_PER_S, Agent, Charge, charge_of, words_of
from slurmtrain.resilience.agentwire import Joiner, NodeReport, Order, RankSight
from slurmtrain.rundir import RunDir
from slurmtrain.shell import SystemShell, Talk
from slurmtrain.telemetry.heartbeat import heartbeat_dir, run_memory
from tests.fakes.clock import FakeClock

CHARGE = Charge(RunDir(Path("/runs/r")), "n2", silence_s=40, orphan_s=20)
RANK = RankSight(3, 4711, "runs", "step", 9, 0.5, 0.5)


class Stage:
    """An agent on a fake clock; `lines`: what it has printed; `open`: whether somebody takes its lines."""

    def __init__(self, charge: Charge = CHARGE) -> None:
        self.clock, self.lines, self.open, self.stalled = FakeClock(), [], True, 0.0
        self.ranks: tuple[RankSight, ...] = (RANK,)
        self.agent = Agent(charge, self.clock, lambda _: self.ranks, lambda: self.stalled, {"sweep": self.sweep}, self._write)
        self.swept: list[int] = []

    def sweep(self, order: Order) -> str:
        self.swept.append(order.attempt)
        return "1 process ended"

    def _write(self, line: str) -> bool:
        if self.open:
            self.lines.append(line)
        return self.open

    def order(self, kind: str, number: int = 1, **more: object) -> None:
        self.agent.hear(Order(kind, number, **more).to_line())

    def pass_time(self, seconds: float, turn_s: float = 0.5) -> str:
        """Turns; the last word."""
        word = "stay"
        for _ in range(round(seconds / turn_s)):
            self.clock.advance(turn_s)
            word = self.agent.turn()
            if word != "stay":
                break
        return word

    @property
    def reports(self) -> list[NodeReport]:
        return [NodeReport.from_line(line) for line in self.lines]


def test_the_first_turn_tells_that_it_is_there_and_a_quiet_node_is_heard_every_few_seconds():
    stage = Stage()
    stage.agent.turn()
    stage.pass_time(12)
    assert [(one.node, one.attempt, one.ranks) for one in stage.reports] == [("n2", 0, ())] * 5
    assert [one.number for one in stage.reports] == [1, 2, 3, 4, 5]
    assert IDLE_S == 3.0


def test_a_node_with_ranks_that_step_reports_once_a_second_and_what_they_do_at_once():
    stage = Stage()
    stage.agent.turn()
    stage.order("watch", attempt=2)
    stage.agent.turn()
    assert stage.reports[-1].ranks == (RANK,)
    assert stage.reports[-1].attempt == 2
    for step in range(10, 30):
        stage.ranks = (replace(RANK, step=step),)
        stage.pass_time(0.5)
    assert len(stage.reports) == 2 + 10
    stage.ranks = (replace(RANK, step=29, age_s=7.0),)
    before = len(stage.reports)
    stage.pass_time(6)
    assert len(stage.reports) - before == 2, "ages alone are no news"


def test_at_a_thousand_nodes_the_lines_that_come_in_are_bounded():
    assert 1000 / replace(CHARGE, crowd=1000).report_s <= LINES_PER_S
    assert 10_000 / replace(CHARGE, crowd=10_000).report_s <= LINES_PER_S
    assert replace(CHARGE, crowd=100).report_s == 1.0
    assert 1000 / replace(CHARGE, crowd=1000).folder_s <= 100


def test_an_order_that_takes_long_holds_up_nothing_and_is_answered_by_its_number():
    stage = Stage()
    stage.order("sweep", 7, attempt=2)
    stage.order("sweep", 8, attempt=3, nodes=("n1",))
    stage.order("stacks", 9)
    for _ in range(200):
        stage.pass_time(1)
        if any(one.done for one in stage.reports):
            break
    assert [one.done for one in stage.reports if one.done] == [{7: "1 process ended"}]
    assert stage.swept == [2]


def test_what_was_done_is_told_again_until_somebody_takes_it():
    stage = Stage()
    stage.open = False
    stage.order("sweep", 7, attempt=2)
    stage.pass_time(5)
    stage.open = True
    for _ in range(200):
        stage.pass_time(1)
        if any(one.done for one in stage.reports):
            break
    stage.pass_time(5)
    assert [one.done for one in stage.reports if one.done] == [{7: "1 process ended"}]


def test_a_deed_that_fails_is_told_in_a_line():
    stage = Stage()
    stage.agent.deeds = {"sweep": lambda order: 1 // 0}
    stage.order("sweep", 7)
    for _ in range(200):
        stage.pass_time(1)
        if any(one.done for one in stage.reports):
            break
    (done,) = [one.done[7] for one in stage.reports if one.done]
    assert "ZeroDivisionError" in done
    assert len(done) <= DONE_WORDS


def test_pings_keep_it_and_silence_ends_it():
    stage = Stage()
    for _ in range(20):
        stage.order("ping", 0)
        assert stage.pass_time(5) == "stay"
    assert stage.pass_time(34) == "stay"
    assert stage.pass_time(2) == "clear"


def test_the_end_of_the_input_ends_it_after_a_while_and_the_word_at_once():
    stage = Stage()
    stage.agent.hear("")
    assert stage.pass_time(19) == "stay"
    assert stage.pass_time(2) == "clear"
    stage = Stage()
    stage.order("end")
    assert stage.pass_time(0.5) == "leave"


def test_orders_come_in_pieces_and_between_other_lines():
    stage = Stage()
    line = Order("watch", 1, 4).to_line()
    for piece in ("module: loaded gcc\n", line[:10], line[10:-1]):
        stage.agent.hear(piece)
    assert stage.agent.attempt == 0
    stage.agent.hear("\n")
    assert stage.agent.attempt == 4


def test_a_stall_is_reported_with_its_length():
    stage = Stage()
    stage.agent.turn()
    stage.stalled = 12.34
    stage.pass_time(1)
    assert stage.reports[-1].stall_s == 12.3


def test_the_command_line_there_and_back():
    charge = replace(CHARGE, crowd=1000, deputies=("n2", "n3"), supervisor="4711@n1")
    assert charge_of(words_of(charge), {"SLURMD_NODENAME": "n2"}) == charge
    assert charge_of(["/runs/r"], {"SLURMTRAIN_NODE": "local-1", "SLURMD_NODENAME": "n2"}).node == "local-1"
    for words in ([], ["/r", "--crowd"], ["/r", "--crowd", "x"], ["/r", "--what", "1"]):
        with pytest.raises(ValueError):  # noqa: PT011 whatever it says, it is printed with the usage
            charge_of(words, {})


# --- as a process

RANK_CODE = """
import sys, time
from pathlib import Path
from slurmtrain.clock import SystemClock
from slurmtrain.telemetry.heartbeat import SharedHeart
heart = SharedHeart(Path(sys.argv[1]), 5, 1, SystemClock())
heart.beat("step", step=3)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def run(tmp_path) -> RunDir:
    run = RunDir(tmp_path / "r")
    run.create()
    run.job_json.write_text("{}")
    return run


@pytest.fixture
def speak(run):
    talks: list[Talk] = []

    def start(*options: str, node: str = "n1") -> Talk:
        talk = SystemShell().converse(
            [sys.executable, "-m", "slurmtrain.resilience.agent", str(run.path), *options],
            env={**os.environ, "SLURMTRAIN_NODE": node},
            stderr=run.agents_log,
        )
        talks.append(talk)
        return talk

    yield start
    for talk in talks:
        talk.kill_group()
        talk.wait(10)
        talk.close()


@pytest.fixture
def rank(run):
    """A rank of attempt 1 on node n1, which beats once."""
    env = {**os.environ, "SLURMTRAIN_RUN": str(run.path), "SLURMTRAIN_ATTEMPT": "1", "SLURMTRAIN_NODE": "n1"}
    folder = heartbeat_dir(run.path, 1, "n1")
    child = subprocess.Popen([sys.executable, "-c", RANK_CODE, str(folder)], env=env, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    yield child
    child.kill()
    child.communicate()


@pytest.fixture
def stopped(run):
    """A supervisor of the run that has been stopped."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(run.submit)])
    os.kill(child.pid, signal.SIGSTOP)
    yield child
    child.kill()
    child.wait()


def listen(talk: Talk, wanted, limit_s: float = 15) -> NodeReport:
    """The first report that is wanted."""
    joiner, rest, deadline = Joiner(), "", time.monotonic() + limit_s
    while time.monotonic() < deadline:
        *lines, rest = (rest + talk.heard()).split("\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                if (whole := joiner.take(line + "\n")) is not None and wanted(report := NodeReport.from_line(whole)):
                    return report
        os.sched_yield()
    raise AssertionError("it did not come")


def test_a_life(run, speak, rank):
    """It tells what it sees, obeys, and leaves nothing."""
    agent = speak()
    listen(agent, lambda report: report.node == "n1")
    agent.say(Order("watch", 1, 1, ranks={"n1": (5,)}).to_line())
    report = listen(agent, lambda report: report.ranks)
    (seen,) = report.ranks
    assert (seen.rank, seen.pid, seen.state, seen.phase, seen.step) == (5, rank.pid, "runs", "step", 3)
    assert (report.attempt, report.stall_s) == (1, 0.0)
    agent.say(Order("sweep", 2, 1).to_line())
    assert listen(agent, lambda report: report.done).done == {2: "1 process ended"}
    assert rank.wait(5) != 0
    assert not heartbeat_dir(run.path, 1, "n1").exists()
    agent.say(Order("end", 3).to_line())
    assert agent.wait(10) == 0
    assert not run_memory(run.path).exists()
    assert run.agents_log.read_text() == ""


def test_it_writes_nothing_into_the_run(run, speak, rank):
    """A thousand of them for weeks: no file, no byte, no change of a time."""

    def state() -> dict[str, tuple[int, int]]:
        return {str(path): ((found := path.stat()).st_mtime_ns, found.st_size) for path in [run.path, *run.path.rglob("*")]}

    agent = speak()
    listen(agent, lambda report: True)
    before = state()
    agent.say(Order("watch", 1, 1).to_line())
    listen(agent, lambda report: report.ranks and report.number > 2)
    agent.say(Order("sweep", 2, 1).to_line())
    listen(agent, lambda report: report.done)
    agent.say(Order("end", 3).to_line())
    assert agent.wait(10) == 0
    assert state() == before


def test_without_its_supervisor_it_ends_the_ranks_and_leaves(run, speak, rank):
    agent = speak("--orphan-s", "0.5")
    agent.say(Order("watch", 1, 1).to_line())
    listen(agent, lambda report: report.ranks)
    agent.hang_up()
    assert agent.wait(15) == 0
    assert rank.wait(1) != 0
    assert not run_memory(run.path).exists()


def test_silence_is_enough(run, speak, rank):
    agent = speak("--silence-s", "1.5")
    agent.say(Order("watch", 1, 1).to_line())
    assert agent.wait(15) == 0
    assert rank.wait(1) != 0


def test_an_agent_that_was_replaced_leaves_the_ranks_alone(run, speak, rank):
    old = speak("--orphan-s", "2")
    old.say(Order("watch", 1, 1).to_line())
    listen(old, lambda report: report.ranks)
    young = speak()
    listen(young, lambda report: True)
    old.hang_up()
    assert old.wait(15) == 0
    assert rank.poll() is None
    young.say(Order("watch", 1, 1).to_line())
    assert listen(young, lambda report: report.ranks).ranks[0].rank == 5


def test_a_younger_agent_that_died_at_once_replaces_nobody(run, speak, rank):
    """It was started by a supervisor in its last moments: somebody has to see to the node."""
    old = speak("--orphan-s", "1")
    old.say(Order("watch", 1, 1).to_line())
    listen(old, lambda report: report.ranks)
    young = speak()
    listen(young, lambda report: True)
    old.hang_up()
    young.kill_group()
    assert old.wait(15) == 0
    assert rank.wait(1) != 0


def test_nobody_reads_its_reports_and_it_still_notices_the_end(run):
    """A pipe that is full must not hold it up: the one who should read has been stopped."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, bytes(65536)):
            pass
    argv = [sys.executable, "-m", "slurmtrain.resilience.agent", str(run.path), "--orphan-s", "0.3"]
    agent = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=writer, env={**os.environ, "SLURMTRAIN_NODE": "n1"})
    os.set_blocking(writer, True)  # the flag is the pipe's: the agent sets its own
    try:
        assert agent.wait(15) == 0
    finally:
        agent.kill()
        os.close(reader)
        os.close(writer)


def test_it_loads_little():
    """A thousand of them start at once from the shared folder."""
    code = "import sys; import slurmtrain.resilience.agent; print(len(sys.modules), *(m for m in sys.argv[1:] if m in sys.modules))"
    heavy = ("numpy", "torch", "pydantic", "ClusterShell", "slurmtrain.config", "slurmtrain.slurm", "asyncio", "email", "multiprocessing")
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, timeout=60, check=True)
    count, *loaded = done.stdout.split()
    assert loaded == []
    assert int(count) < 260


def test_a_supervisor_that_says_nothing_is_ended_by_the_agent_of_its_node(run, speak, stopped):
    """Broken: its ranks were ended, its script waited for it, and the job ran on with nothing until its time limit."""
    agent = speak("--silence-s", "1", "--supervisor", f"{stopped.pid}@n1")
    assert agent.wait(15) == 0
    assert stopped.wait(5) == -signal.SIGKILL


@pytest.mark.parametrize("why", ["another node", "another run's", "its input has ended"])
def test_no_agent_ends_what_is_no_stuck_supervisor_of_its_own_node(run, speak, stopped, why):
    pid = os.getpid() if why == "another run's" else stopped.pid
    agent = speak("--silence-s", "1", "--orphan-s", "0.5", "--supervisor", f"{pid}@{'n2' if why == 'another node' else 'n1'}")
    if why == "its input has ended":
        agent.hang_up()
    assert agent.wait(15) == 0
    assert stopped.poll() is None
