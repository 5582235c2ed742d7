"""The real agents: one step of the job with a task on each node (srun), or a process for each emulated node (mpiexec sites).

A thread of its own speaks with them, so that a supervisor that waits for Slurm or for the shared folder is not taken for a dead one,
and starts agents anew that are gone: where a whole step has ended all of its nodes by one step, where a single node fell silent that
node alone, each up to TRIES times, with pauses that grow. A node that stays without is told once, and goes on unwatched.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import psutil

from slurmtrain.clock import Clock
from slurmtrain.errors import LaunchError
from slurmtrain.resilience.agent import Charge, words_of
from slurmtrain.resilience.agents import Heard
from slurmtrain.resilience.agentwire import Joiner, NodeReport, Order
from slurmtrain.resilience.deputy import COUNT
from slurmtrain.resilience.presence import PING_S
from slurmtrain.resilience.ranks import Setup, agent_environment
from slurmtrain.shell import Shell, Talk
from slurmtrain.slurm.environment import local_env
from slurmtrain.slurm.hostlist import fold
from slurmtrain.steps.launcher import StepSpec
from slurmtrain.steps.srun import SrunLauncher

TURN_S = 0.25
SILENT_S = 10.0
"""Without a report; agents report every 3 s."""
FIRST_WORD_S = 60.0
"""From a start to the first report: a thousand interpreters read the shared folder."""
TRIES = 3
FIRST_PAUSE_S = 5.0
SINGLE_STEPS = 8
"""Nodes that are started singly in one turn."""
CLOSE_S = 2.0
KEPT_WORDS = 32
"""Of a node: what came of so many of the newest orders."""


@dataclass
class Group:
    """Agents that were started together. `end`: end what is left of them, waiting for nobody; `up`: called once, when one has spoken."""

    nodes: tuple[str, ...]
    talk: Talk
    end: Callable[[], None]
    up: Callable[[], None] = lambda: None
    spoke: bool = False
    joiner: Joiner = field(default_factory=Joiner)
    rest: str = ""


class Starter(Protocol):
    """How agents come to their nodes."""

    def start(self, nodes: tuple[str, ...], everybody: tuple[str, ...]) -> list[Group]:
        """Start the agents of `nodes`, of all that there are to be. Raises LaunchError."""


@dataclass
class _Seat:
    """A node's agent. `since`: when it was started or last heard; `limit_s`: how long it may be silent from then on."""

    group: Group | None = None
    since: float = 0.0
    limit_s: float = FIRST_WORD_S
    tries: int = 0
    next_try: float = 0.0
    alone: bool = False
    given_up: bool = False


class StepAgents:
    """See Agents. `turn()` is one round of the thread's work; `threaded=False`: whoever made it calls it."""

    def __init__(self, starter: Starter, clock: Clock, say: Callable[[str], None], *, threaded: bool = True) -> None:
        self._starter, self._clock, self._say, self._threaded = starter, clock, say, threaded
        self._lock, self._leave = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._seats: dict[str, _Seat] = {}
        self._groups: list[Group] = []
        self._heard: dict[str, Heard] = {}
        self._watch: Order | None = None
        self._pinged_at = float("-inf")
        self._words: list[str] = []

    # --- Agents

    def start(self, nodes: Sequence[str]) -> None:
        with self._lock:
            self._seats = {node: self._seats.get(node, _Seat()) for node in nodes}
            now = self._clock.monotonic()
            empty = [node for node, seat in self._seats.items() if seat.group is None]
            for node in empty:
                self._seats[node] = _Seat(alone=self._seats[node].alone)
            together = [node for node in empty if not self._seats[node].alone]
            self._seat(together, now)
            self._restart(now)
        self._tell()
        if self._threaded and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="agents", daemon=True)
            self._thread.start()

    def heard(self) -> Mapping[str, Heard]:
        self._tell()
        with self._lock:
            return {node: self._heard[node] for node in self._seats if node in self._heard}

    def send(self, order: Order) -> None:
        self._tell()
        with self._lock:
            if order.kind == "watch":
                self._watch = order
            self._send(order)

    def watched(self) -> bool:
        self._tell()
        with self._lock:
            return not self._leave.is_set() and any(not seat.given_up for seat in self._seats.values())

    def close(self) -> None:
        self._leave.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        with self._lock:
            self._send(Order("end", 0))
            for group in self._groups:
                group.talk.hang_up()
            limit = self._clock.monotonic() + CLOSE_S
            left = [group for group in self._groups if not self._has_gone(group, limit)]
            for group in self._groups:
                group.talk.close()
            self._groups = []
        for group in left:
            group.end()
        self._tell()

    # --- the thread

    def _run(self) -> None:
        while not self._leave.is_set():
            self.turn()
            self._clock.wait(self._leave, TURN_S)

    def turn(self) -> None:
        """Listen, be heard, and start anew what is gone."""
        with self._lock:
            now = self._clock.monotonic()
            for group in self._groups:
                self._listen(group, now)
            if now - self._pinged_at >= PING_S:
                self._pinged_at = now
                self._send(Order("ping", 0))
            self._look_after(now)
            self._restart(now)

    def _listen(self, group: Group, now: float) -> None:
        *lines, group.rest = (group.rest + group.talk.heard()).split("\n")
        for line in lines:
            whole = group.joiner.take(line + "\n")
            try:
                report = NodeReport.from_line(whole) if whole is not None else None
            except ValueError:
                continue
            seat = self._seats.get(report.node) if report is not None else None
            if report is None or seat is None or seat.group is not group:
                continue
            if not group.spoke:
                group.spoke = True
                group.up()
            if seat.limit_s == FIRST_WORD_S and seat.tries:
                self._words.append(f"node {report.node} is watched again")
            seat.since, seat.limit_s = now, SILENT_S
            self._heard[report.node] = Heard(self._merged(report), now)

    def _merged(self, report: NodeReport) -> NodeReport:
        """With what the reports before told as done: a reader that comes late misses nothing."""
        before = self._heard.get(report.node)
        done = {**before.report.done, **report.done} if before is not None else report.done
        return replace(report, done=dict(list(done.items())[-KEPT_WORDS:]))

    def _look_after(self, now: float) -> None:
        """Find who is gone: all of a group whose launcher has ended, or a node that is silent."""
        for group in [group for group in self._groups if group.talk.poll() is not None]:
            self._listen(group, now)
            self._let_go(group)
            nodes = [node for node, seat in self._seats.items() if seat.group is group]
            for node in nodes:
                self._lose(node, now, alone=len(group.nodes) == 1 or self._seats[node].tries > 0)
            if nodes:
                self._words.append(f"the agents of {fold(nodes)} have ended")
        silent = [node for node, seat in self._seats.items() if seat.group is not None and now - seat.since > seat.limit_s]
        if silent:
            self._words.append(f"the agents of {fold(silent)} say nothing")
        for node in silent:
            its = self._seats[node].group
            self._lose(node, now, alone=any(seat.group is its for other, seat in self._seats.items() if other not in silent))
        for group in [group for group in self._groups if all(seat.group is not group for seat in self._seats.values())]:
            self._let_go(group)

    def _let_go(self, group: Group) -> None:
        """Its launcher goes, and nobody else is ended: agents that live leave by themselves, once others have taken their place.

        Where launcher and supervisor are dying with their node, the agents of the others are all that is left.
        """
        self._groups.remove(group)
        group.talk.kill_group()
        group.talk.close()

    def _lose(self, node: str, now: float, *, alone: bool) -> None:
        seat = self._seats[node]
        if seat.limit_s == SILENT_S and seat.tries and now - seat.next_try > FIRST_WORD_S:
            seat.tries = 0  # the start before held for a while: a new fault
        pause_s = FIRST_PAUSE_S * 2**seat.tries if seat.tries else 0.0
        seat.group, seat.alone, seat.next_try = None, alone, now + pause_s

    def _restart(self, now: float) -> None:
        due = [node for node, seat in self._seats.items() if seat.group is None and not seat.given_up and now >= seat.next_try]
        for node in [node for node in due if self._seats[node].tries >= TRIES]:
            self._seats[node].given_up = True
            self._words.append(f"unwatched: node {node} has no agent any more")
        due = [node for node in due if not self._seats[node].given_up]
        for node in due:
            self._seats[node].tries += 1
        self._seat([node for node in due if not self._seats[node].alone], now)
        for node in [node for node in due if self._seats[node].alone][:SINGLE_STEPS]:
            self._seat([node], now)

    def _seat(self, nodes: Sequence[str], now: float) -> None:
        if not nodes:
            return
        try:
            groups = self._starter.start(tuple(nodes), tuple(self._seats))
        except LaunchError as error:
            self._words.append(f"unwatched: {error}")
            for node in nodes:
                self._seats[node].given_up = True
            return
        self._groups += groups
        for group in groups:
            for node in group.nodes:
                seat = self._seats[node]
                seat.group, seat.since, seat.limit_s = group, now, FIRST_WORD_S
            if self._watch is not None:
                group.talk.say(self._watch.to_line())

    def _send(self, order: Order) -> None:
        line = order.to_line()
        for group in self._groups:
            group.talk.say(line)

    def _has_gone(self, group: Group, limit: float) -> bool:
        """Whether its launcher has ended by the limit; a group with a node that is silent is not waited for."""
        now = self._clock.monotonic()
        silent = any(now - self._seats[node].since > SILENT_S for node in group.nodes if node in self._seats)
        return group.talk.wait(0.0 if silent else max(0.0, limit - now)) is not None

    def _tell(self) -> None:
        """Lines are said by the thread that calls, never by ours: the supervisor's output has one writer."""
        with self._lock:
            words, self._words = self._words, []
        for line in words:
            self._say(line)


class SrunStarter:
    """One step for all. `environ`: of the batch script; `deputies`: whether agents may act for a supervisor that is lost with its node;
    `restarted`: whether a supervisor that is killed is started again.
    """

    def __init__(
        self, setup: Setup, launcher: SrunLauncher, environ: Mapping[str, str], job_id: str, *, deputies: bool, restarted: bool = False
    ) -> None:
        self._setup, self._launcher, self._environ, self._job_id, self._deputies = setup, launcher, environ, job_id, deputies
        self._restarted = restarted
        self._numbers, self._token = itertools.count(1), secrets.token_hex(2)

    def start(self, nodes: tuple[str, ...], everybody: tuple[str, ...]) -> list[Group]:
        host = self._environ.get("SLURMD_NODENAME", "")
        deputies = tuple(node for node in everybody if node != host)[:COUNT] if self._deputies else ()
        spec = StepSpec(
            command=_command(self._setup, len(everybody), deputies, f"{os.getpid()}@{host}" if self._restarted and host else ""),
            nodes=nodes,
            tasks_per_node=1,
            output=self._setup.run.agents_log,
            job_id=self._job_id,
            environment=agent_environment(self._setup, self._environ),
            cwd=self._setup.run.code,
            options=("--no-kill",),
            name=f"agents-{self._token}-{next(self._numbers)}",
        )
        talk, step = self._launcher.converse(spec)
        return [Group(nodes, talk, step.abandon, lambda: dismiss_shepherd(talk.pid))]


def dismiss_shepherd(srun: int) -> None:
    """End the helper of an srun, a child of it that kills the whole step when srun itself is killed.

    A batch host that dies process by process would take the agents of all nodes with it, and no deputy would be left.
    """
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(srun).children():
            if child.name() == "srun":
                child.kill()


class LocalStarter:
    """Nodes that are emulated on this machine: a process each."""

    def __init__(self, setup: Setup, shell: Shell, environ: Mapping[str, str]) -> None:
        self._setup, self._shell, self._environ = setup, shell, environ

    def start(self, nodes: tuple[str, ...], everybody: tuple[str, ...]) -> list[Group]:
        setup, command = self._setup, _command(self._setup, len(everybody), ())
        env = {**local_env(self._environ), **agent_environment(setup, self._environ)}
        groups = []
        for node in nodes:
            try:
                talk = self._shell.converse(command, env={**env, "SLURMTRAIN_NODE": node}, cwd=setup.run.code, stderr=setup.run.agents_log)
            except OSError as error:
                raise LaunchError(f"an agent cannot be started: {error.strerror}: {error.filename}") from error
            groups.append(Group((node,), talk, talk.kill_group))
        return groups


def _command(setup: Setup, crowd: int, deputies: tuple[str, ...], supervisor: str = "") -> tuple[str, ...]:
    silence_s = float(setup.site.timeouts.supervisor_silence_s)
    charge = Charge(setup.run, "", crowd, silence_s, silence_s / 2, deputies, supervisor)
    return (setup.python, "-m", "slurmtrain.resilience.agent", *words_of(charge))
