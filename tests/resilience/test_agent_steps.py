"""The supervisor's side of the agents: lines in and out, and agents that are gone; and the contract of all Agents."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.errors import LaunchError
from slurmtrain.resilience.agent_steps import FIRST_WORD_S, SILENT_S, TRIES, Group, LocalStarter, SrunStarter, StepAgents
from slurmtrain.resilience.agents import Agents
from slurmtrain.resilience.agentwire import NodeReport, Order, RankSight, parts_of
from slurmtrain.resilience.composition import read_setup
from slurmtrain.resilience.presence import PING_S
from slurmtrain.shell import SystemShell
from slurmtrain.slurm.types import JobInfo
from slurmtrain.steps.srun import SrunLauncher
from tests.fakes.agents import FakeAgents
from tests.fakes.clock import FakeClock
from tests.fakes.shell import Call, FakeShell, FakeTalk
from tests.fakes.slurm import FakeSlurm
from tests.resilience.runs import make_run

NODES = ("n1", "n2", "n3")


class Stage:
    """StepAgents on a fake clock with groups that a test moves. `dead`: nodes that never report; `missing`: nothing can be started."""

    def __init__(self) -> None:
        self.clock, self.said, self.groups, self.ended = FakeClock(), [], [], []
        self.dead: set[str] = set()
        self.missing = False
        self.number = 0
        self.agents = StepAgents(self, self.clock, self.said.append, threaded=False)

    def start(self, nodes: tuple[str, ...], everybody: tuple[str, ...]) -> list[Group]:
        if self.missing:
            raise LaunchError("srun cannot be started: No such file or directory: srun")
        group = Group(nodes, FakeTalk(Call(("srun",))), lambda: self.ended.append(nodes))
        self.groups.append(group)
        return [group]

    def report(self, group: Group, *, attempt: int = 0, done: dict[int, str] | None = None) -> None:
        self.number += 1
        for node in group.nodes:
            if node not in self.dead and group.talk.poll() is None:
                for line in parts_of(NodeReport(node, self.number, attempt, self.clock.monotonic(), done=done or {})):
                    group.talk.prints(line)

    def pass_time(self, seconds: float, *, until: Callable[[], object] = lambda: False) -> None:
        """Second by second: all that live report, and the agents' thread has its turn."""
        for _ in range(round(seconds)):
            self.clock.advance(1)
            for group in self.groups:
                self.report(group)
            self.agents.turn()
            if until():
                return

    @property
    def started(self) -> list[tuple[str, ...]]:
        return [group.nodes for group in self.groups]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_one_step_for_all_and_pings_that_need_no_supervisors_turn(stage):
    stage.agents.start(NODES)
    stage.pass_time(60)
    assert stage.started == [NODES]
    assert set(stage.agents.heard()) == set(NODES)
    pings = [line for line in stage.groups[0].talk.said if Order.from_line(line).kind == "ping"]
    assert len(pings) in range(int(60 / PING_S) - 1, int(60 / PING_S) + 2)
    assert stage.said == []


def test_reports_come_with_the_time_of_their_coming_and_lines_between_are_passed_over(stage):
    stage.agents.start(NODES)
    stage.report(stage.groups[0])
    stage.groups[0].talk.prints('module: loading gcc\n{"v":1}\n')
    stage.agents.turn()
    at = stage.clock.monotonic()
    stage.clock.advance(5)
    stage.dead = {"n2"}
    stage.report(stage.groups[0])
    stage.agents.turn()
    heard = stage.agents.heard()
    assert (heard["n2"].at, heard["n1"].at) == (at, at + 5)


def test_a_line_that_comes_in_pieces_and_a_report_that_comes_in_parts(stage):
    stage.agents.start(("n1",))
    report = NodeReport("n1", 1, 2, 5.0, tuple(RankSight(r, r + 9, "runs", "step", 1, 0.0, 0.0) for r in range(72)))
    text = "".join(parts_of(report))
    for at in range(0, len(text), 333):
        stage.groups[0].talk.prints(text[at : at + 333])
        stage.agents.turn()
    assert stage.agents.heard()["n1"].report == report


def test_what_was_done_is_kept_for_a_reader_who_comes_late(stage):
    stage.agents.start(("n1",))
    stage.report(stage.groups[0], done={4: "2 processes ended"})
    stage.report(stage.groups[0], done={5: "nothing was left"})
    stage.report(stage.groups[0])
    stage.agents.turn()
    assert stage.agents.heard()["n1"].report.done == {4: "2 processes ended", 5: "nothing was left"}


def test_agents_whose_step_ended_are_started_again_by_one_step_and_hear_what_they_are_to_watch(stage):
    """C46: killing the monitors is noticed."""
    stage.agents.start(NODES)
    watch = Order("watch", 3, 2, ranks={"n1": (0, 1)})
    stage.agents.send(watch)
    stage.pass_time(5)
    stage.groups[0].talk.finish(137)
    stage.pass_time(5)
    assert stage.started == [NODES, NODES]
    assert Order.from_line(stage.groups[1].talk.said[0]) == watch
    assert stage.agents.watched()
    stage.agents.heard()
    assert stage.said == ["the agents of n[1-3] have ended", *(f"node {node} is watched again" for node in NODES)]
    assert stage.ended == [], "agents of the old step see for themselves whether somebody has replaced them"


def test_one_agent_that_falls_silent_is_started_again_alone(stage):
    stage.agents.start(NODES)
    stage.pass_time(5)
    stage.dead = {"n2"}
    stage.pass_time(SILENT_S + 2, until=lambda: len(stage.groups) > 1)
    assert stage.started == [NODES, ("n2",)]
    stage.dead = set()
    stage.pass_time(5)
    stage.agents.heard()
    assert stage.said == ["the agents of n2 say nothing", "node n2 is watched again"]
    assert stage.groups[0].talk.poll() is None


def test_reports_of_an_agent_that_was_replaced_do_not_count(stage):
    stage.agents.start(NODES)
    stage.pass_time(5)
    stage.dead = {"n2"}
    stage.pass_time(SILENT_S + 2, until=lambda: len(stage.groups) > 1)
    stage.groups[0].talk.prints(NodeReport("n2", 99, 0, 1.0).to_line())
    stage.agents.turn()
    assert stage.agents.heard()["n2"].report.number != 99


def test_a_node_that_is_dead_is_tried_a_few_times_and_then_told_to_be_unwatched_once(stage):
    stage.agents.start(NODES)
    stage.pass_time(5)
    stage.dead = {"n2"}
    stage.pass_time(TRIES * (FIRST_WORD_S + 60))
    assert stage.started == [NODES, *[("n2",)] * TRIES]
    stage.agents.heard()
    assert [line for line in stage.said if "unwatched" in line] == ["unwatched: node n2 has no agent any more"]
    assert stage.agents.watched(), "the others are"
    assert [group.talk.poll() for group in stage.groups[1:]] == [-9] * TRIES, "a launcher whose agent never spoke is killed"
    assert stage.ended == []


def test_the_next_attempt_tries_again_and_forgets_nodes_that_are_not_there_any_more(stage):
    stage.agents.start(NODES)
    stage.pass_time(5)
    stage.dead = {"n2"}
    stage.pass_time(TRIES * (FIRST_WORD_S + 60))
    count = len(stage.groups)
    stage.agents.start(("n1", "n3"))
    assert len(stage.groups) == count
    assert set(stage.agents.heard()) == {"n1", "n3"}
    stage.dead = set()
    stage.agents.start(NODES)
    stage.pass_time(3)
    assert stage.started[count:] == [("n2",)]
    assert set(stage.agents.heard()) == set(NODES)


def test_a_launcher_that_is_not_there_leaves_the_attempt_unwatched(stage):
    stage.missing = True
    stage.agents.start(NODES)
    stage.pass_time(30)
    assert not stage.agents.watched()
    assert stage.said == ["unwatched: srun cannot be started: No such file or directory: srun"]


def test_a_supervisor_that_was_stopped_for_a_while_takes_nobody_for_silent(stage):
    stage.agents.start(NODES)
    stage.pass_time(5)
    stage.clock.advance(300)
    stage.report(stage.groups[0])
    stage.agents.turn()
    assert stage.started == [NODES]


def test_the_end_is_said_and_nobody_dead_is_waited_for(stage):
    stage.agents.start(NODES)
    stage.pass_time(5)
    stage.dead = {"n2"}
    stage.pass_time(SILENT_S + 2, until=lambda: len(stage.groups) > 1)
    first, second = stage.groups
    first.talk.finish(0)
    begun = time.monotonic()
    stage.agents.close()
    assert time.monotonic() - begun < 3
    assert Order.from_line(second.talk.said[-1]).kind == "end"
    assert all(group.talk.hung_up for group in stage.groups)
    assert stage.ended == [("n2",)]
    assert not stage.agents.watched()
    stage.agents.send(Order("ping", 0))


def test_by_srun_one_task_a_node_with_a_deputy_that_is_not_the_batch_host(tmp_path):
    run = make_run(tmp_path / "r", launcher="srun", nodes=3)
    clock = FakeClock()
    slurm, shell = FakeSlurm(clock), FakeShell({}, {("srun",): FakeTalk})
    slurm.put(JobInfo("7", "job", "RUNNING", nodes=NODES))
    environ = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_NTASKS": "12"}
    starter = SrunStarter(read_setup(run), SrunLauncher(shell, clock, environ, slurm), environ, "7", deputies=True, restarted=True)
    (group,) = starter.start(NODES, NODES)
    (again,) = starter.start(("n3",), NODES)
    first, second = (call.argv for call in shell.calls)
    assert {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--overlap", "--kill-on-bad-exit=0", "--mpi=none", "--no-kill"} < set(first)
    assert not [word for word in first if word.startswith(("--output", "--gpus", "--error", "--input"))]
    assert first[first.index("--deputies") + 1] == second[second.index("--deputies") + 1] == "n2,n3"
    assert first[first.index("--crowd") + 1] == "3"
    assert first[first.index("--supervisor") + 1] == f"{os.getpid()}@n1"
    names = [word for argv in (first, second) for word in argv if word.startswith("--job-name=")]
    assert len(set(names)) == 2
    assert all("SLURMTRAIN_ATTEMPT" not in call.env and call.env["SLURMTRAIN_RUN"] == str(run.path) for call in shell.calls)
    slurm.step("7", names[0].partition("=")[2])
    group.end()
    assert len(slurm.cancelled) == 1
    assert again.talk.poll() is None


# --- the contract


class AgentsConformance:
    @pytest.fixture
    def agents(self) -> Agents:
        raise NotImplementedError

    def until(self, happened: Callable[[], object], limit_s: float = 20) -> None:
        deadline = time.monotonic() + limit_s
        while not happened():
            assert time.monotonic() < deadline, "too late"
            time.sleep(0.02)

    def test_a_life(self, agents):
        agents.start(("n1", "n2"))
        self.until(lambda: set(agents.heard()) == {"n1", "n2"})
        assert agents.watched()
        agents.send(Order("watch", 1, 3, ranks={"n1": (0,), "n2": (1,)}))
        self.until(lambda: all(heard.report.attempt == 3 for heard in agents.heard().values()))
        agents.send(Order("sweep", 2, 2, nodes=("n2",)))
        self.until(lambda: agents.heard()["n2"].report.done == {2: "nothing was left"})
        assert agents.heard()["n1"].report.done == {}
        first = agents.heard()["n1"]
        self.until(lambda: agents.heard()["n1"].at > first.at and agents.heard()["n1"].report.number > first.report.number)
        agents.start(("n1",))
        assert set(agents.heard()) == {"n1"}
        agents.close()
        assert not agents.watched()
        agents.send(Order("ping", 0))
        agents.close()


class TestFakeAgents(AgentsConformance):
    @pytest.fixture
    def agents(self):
        class Ticking(FakeClock):
            def monotonic(self) -> float:
                self.advance(0.001)
                return super().monotonic()

        return FakeAgents(Ticking(), lively=True)


class TestLocalAgents(AgentsConformance):
    @pytest.fixture
    def run(self, tmp_path):
        return make_run(tmp_path / "r")

    @pytest.fixture
    def said(self) -> list[str]:
        return []

    @pytest.fixture
    def agents(self, run, said):
        agents = StepAgents(LocalStarter(read_setup(run), SystemShell(), os.environ), SystemClock(), said.append)
        yield agents
        agents.close()
        self.until(lambda: not agents_of(run), 10)

    def test_one_that_is_killed_comes_back(self, agents, run, said):
        agents.start(("n1",))
        self.until(agents.heard)
        (pid,) = agents_of(run)
        os.kill(pid, signal.SIGKILL)
        before = agents.heard()["n1"].at
        self.until(lambda: agents_of(run) not in ([], [pid]) and agents.heard()["n1"].at > before)
        self.until(lambda: "node n1 is watched again" in said or agents.heard() is None)


def agents_of(run) -> list[int]:
    """Pids of the agents of a run."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if "slurmtrain.resilience.agent" in line and str(run.path) in line and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found
