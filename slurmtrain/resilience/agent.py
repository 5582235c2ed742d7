"""`python -m slurmtrain.resilience.agent RUN`: the agent of one node, from a supervisor's start to its end.

Orders come in by standard input, reports go out by standard output (agentwire.py). It looks at the ranks' heartbeats and processes, has
a thread ask whether the shared folder answers, and never waits for anything itself: what takes time is done in threads, and what
nobody takes from its output is dropped. When the supervisor is gone (presence.py) it ends the ranks of its node and leaves; a deputy
(deputy.py) sees to the job before it goes. A supervisor that lives and says nothing (stopped, stuck) is ended by the agent of its own
node, so that the batch script starts it again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import selectors
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from slurmtrain.clock import Clock, SystemClock
from slurmtrain.errors import one_line
from slurmtrain.resilience.agentwire import NodeReport, Order, OrderKind, RankSight, parts_of
from slurmtrain.resilience.presence import ORPHAN_S, SILENCE_S, Presence, Word, fate
from slurmtrain.resilience.sights import FolderProbe, Processes, sights_of
from slurmtrain.resilience.stacks import take_stacks
from slurmtrain.resilience.sweep import NODES, forget_beats, remove_empty, sweep
from slurmtrain.rundir import RunDir
from slurmtrain.shell import SystemShell
from slurmtrain.telemetry.heartbeat import heartbeat_dir, read_beats, run_memory

IDLE_S = 3.0
"""At least so often a node reports."""
LINES_PER_S = 500
"""All nodes together, at most, into one supervisor; each of up to 500 nodes reports once a second while something changes."""
FOLDER_S, FOLDER_LOOKS_PER_S = 5.0, 100
"""How often a node asks whether the shared folder answers, and how many of all nodes' questions come in a second, at most."""
DONE_WORDS = 200
Deed = Callable[[Order], str]


@dataclass(frozen=True)
class Charge:
    """What an agent is told at its start. `crowd`: how many agents there are; `deputies`: nodes whose agents act for the supervisor;
    `supervisor`: PID@NODE of one that is started again when it is ended; empty: it is not.
    """

    run: RunDir
    node: str
    crowd: int = 1
    silence_s: float = SILENCE_S
    orphan_s: float = ORPHAN_S
    deputies: tuple[str, ...] = ()
    supervisor: str = ""

    @property
    def report_s(self) -> float:
        return max(1.0, self.crowd / LINES_PER_S)

    @property
    def folder_s(self) -> float:
        return max(FOLDER_S, self.crowd / FOLDER_LOOKS_PER_S)


@dataclass
class Agent:
    """Orders in, reports out, one turn after another. `look(attempt)`: the ranks; `write`: False when nobody took the line."""

    charge: Charge
    clock: Clock
    look: Callable[[int], tuple[RankSight, ...]]
    stall_s: Callable[[], float]
    deeds: Mapping[OrderKind, Deed]
    write: Callable[[str], bool]
    wake: Callable[[], None] = lambda: None
    """Called, by another thread, when there is something to be told at once."""
    attempt: int = 0
    told: bool = False
    term: bool = False
    ended_at: float | None = None
    replaced_at: float | None = None
    _heard_at: float = 0.0
    _reported_at: float = float("-inf")
    _said: object = None
    _number: int = 0
    _rest: str = ""
    _done: dict[int, str] = field(default_factory=dict)
    _results: queue.SimpleQueue[tuple[int, str]] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self._heard_at = self.clock.monotonic()

    def hear(self, text: str) -> None:
        """What came in; empty: the input has ended."""
        if not text:
            self.ended_at = self.clock.monotonic() if self.ended_at is None else self.ended_at
            return
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                self._obey(Order.from_line(line))

    def _obey(self, order: Order) -> None:
        self._heard_at = self.clock.monotonic()
        if not order.concerns(self.charge.node):
            return
        if order.kind == "end":
            self.told = True
        elif order.kind == "watch":
            self.attempt, self._reported_at = order.attempt, float("-inf")
        elif order.kind in self.deeds:
            threading.Thread(target=self._carry_out, args=(order,), name=order.kind, daemon=True).start()

    def _carry_out(self, order: Order) -> None:
        try:
            said = self.deeds[order.kind](order)
        except Exception as error:  # noqa: BLE001 whatever it is: the supervisor is told, and the agent goes on
            said = f"{order.kind} failed: {type(error).__name__}: {error}"
        self._results.put((order.number, one_line(said, DONE_WORDS)))
        self.wake()

    def turn(self, *, replaced: bool = False) -> Word:
        """Report, if there is something to be said, and find out whether to stay."""
        now = self.clock.monotonic()
        self._report(now)
        self.replaced_at = (now if self.replaced_at is None else self.replaced_at) if replaced else None
        seen = Presence(now, self._heard_at, self.ended_at, self.told, self.replaced_at, self.term)
        return fate(seen, silence_s=self.charge.silence_s, orphan_s=self.charge.orphan_s)

    def _report(self, now: float) -> None:
        if self._results.empty() and now - self._reported_at < self.charge.report_s:
            return
        with contextlib.suppress(queue.Empty):
            while True:
                self._done.update([self._results.get_nowait()])
        ranks, stall_s = self.look(self.attempt) if self.attempt else (), self.stall_s()
        said = (self.attempt, stall_s > 0, tuple(self._done), [(r.rank, r.pid, r.state, r.phase, r.step, r.entered) for r in ranks])
        if said == self._said and now - self._reported_at < IDLE_S:
            return
        self._number += 1
        report = NodeReport(self.charge.node, self._number, self.attempt, round(now, 3), ranks, round(stall_s, 1), dict(self._done))
        self._reported_at, self._said = now, said
        taken = [self.write(line) for line in parts_of(report)]
        if all(taken):
            self._done.clear()


class Tenancy:
    """Of two agents of a run on one node the younger stays: its number stands in the node's memory. A younger one that died is none."""

    def __init__(self, run: Path, node: str) -> None:
        self._run, self._node = run, node
        self._file = run_memory(run) / node / "agent"
        self._mine = f"{os.getpid()} {os.urandom(8).hex()}"
        self._processes = Processes()
        self._take()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file.write_text(self._mine)

    def lost(self) -> bool:
        try:
            now = self._file.read_text()
        except OSError:
            return False
        pid = now.partition(" ")[0]
        if now == self._mine:
            return False
        if pid.isdigit() and self._processes.state(int(pid)) == "gone":
            self._take()
            return False
        return True

    def give_up(self) -> None:
        if not self.lost():
            self._file.unlink(missing_ok=True)
            remove_empty(self._run, self._node)


def node_name(environ: Mapping[str, str]) -> str:
    return next((environ[key] for key in NODES if environ.get(key)), os.uname().nodename)


def charge_of(argv: Sequence[str], environ: Mapping[str, str]) -> Charge:
    """The command line: RUN and `--name value` pairs, as `Charge` has them. Raises ValueError for others."""
    run, *words = argv
    given = dict(zip(words[::2], words[1::2], strict=True))
    deputies = tuple(filter(None, given.pop("--deputies", "").split(",")))
    supervisor = given.pop("--supervisor", "")
    numbers = {name[2:].replace("-", "_"): float(value) for name, value in given.items()}
    crowd = int(numbers.pop("crowd", 1))
    if set(numbers) - {"silence_s", "orphan_s"}:
        raise ValueError(f"unknown: {' '.join(sorted(numbers))}")
    return Charge(RunDir(Path(run)), node_name(environ), crowd, deputies=deputies, supervisor=supervisor, **numbers)


def words_of(charge: Charge) -> tuple[str, ...]:
    """The command line of a charge, its node apart."""
    options = {"--crowd": charge.crowd, "--silence-s": charge.silence_s, "--orphan-s": charge.orphan_s}
    deputies = ("--deputies", ",".join(charge.deputies)) if charge.deputies else ()
    supervisor = ("--supervisor", charge.supervisor) if charge.supervisor else ()
    return (str(charge.run.path), *(word for name, value in options.items() for word in (name, str(value))), *deputies, *supervisor)


def serve(charge: Charge, clock: Clock) -> Word:
    """Be the agent until its time is over; "clear" when the node is to be cleared."""
    tenancy, probe = Tenancy(charge.run.path, charge.node), FolderProbe(charge.run.job_json, clock, charge.folder_s)
    processes, supervisor = Processes(), supervisor_here(charge)

    def look(attempt: int) -> tuple[RankSight, ...]:
        beats = read_beats(heartbeat_dir(charge.run.path, attempt, charge.node))
        return sights_of(beats.values(), clock.monotonic(), processes)

    def clear(order: Order) -> str:
        return str(sweep(charge.run.path, charge.node, order.attempt, clock=clock))

    def stacks(order: Order) -> str:
        return take_stacks(charge.run, order.attempt, charge.node, clock=clock, shell=SystemShell(), state=processes.state)

    deeds: dict[OrderKind, Deed] = {"sweep": clear, "stacks": stacks}
    bell = os.eventfd(0)
    agent = Agent(charge, clock, look, lambda: probe.stall_s(clock.monotonic()), deeds, _write, lambda: os.eventfd_write(bell, 1))
    signal.signal(signal.SIGTERM, lambda *_: setattr(agent, "term", True))
    probe.start()
    word = _listen(agent, tenancy, bell)
    if word == "clear" and agent.attempt:
        sweep(charge.run.path, charge.node, agent.attempt, clock=clock)
    elif agent.told:
        forget_beats(charge.run.path, charge.node, agent.attempt)
    if word == "clear" and supervisor is not None and agent.ended_at is None and not tenancy.lost() and not _speaks():
        end_stuck(supervisor)
    if word == "clear" and charge.node in charge.deputies:
        from slurmtrain.resilience.deputy import stand_in  # noqa: PLC0415 Slurm's client is needed on a bad day alone

        stand_in(charge.run, charge.node, charge.deputies.index(charge.node), os.environ, away=lambda: agent.term or tenancy.lost())
    tenancy.give_up()
    return word


def _listen(agent: Agent, tenancy: Tenancy, bell: int) -> Word:
    """Until its time is over. `bell`: an eventfd that another thread rings."""
    with selectors.PollSelector() as ears:
        for fd in (0, bell):
            ears.register(fd, selectors.EVENT_READ)
        while (word := agent.turn(replaced=tenancy.lost())) == "stay":
            for key, _ in ears.select(1.0):
                if key.fd == bell:
                    os.eventfd_read(bell)
                    continue
                agent.hear(os.read(0, 1 << 16).decode(errors="replace"))
                if agent.ended_at is not None:
                    ears.unregister(0)
    return word


def supervisor_here(charge: Charge) -> psutil.Process | None:
    """The supervisor, where it runs on this node, and is that of this run: a number alone may mean another process in a container."""
    pid, _, node = charge.supervisor.partition("@")
    if not pid.isdecimal() or node != charge.node:
        return None
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(int(pid))
        if found.uids().real == os.getuid() and any(word.startswith(str(charge.run.path)) for word in found.cmdline()):
            return found
    return None


def _speaks() -> bool:
    """Whether the supervisor has said something at last."""
    return bool(select.select([0], [], [], 0)[0])


def end_stuck(supervisor: psutil.Process) -> None:
    """By SIGKILL: a stopped process hears nothing else. Never a process that was given its number since."""
    with contextlib.suppress(psutil.Error):
        supervisor.kill()


def _write(line: str) -> bool:
    """Without waiting: whoever does not read must not keep the agent from its work."""
    data = line.encode()
    try:
        return os.write(1, data) == len(data)
    except OSError:
        return False


def main(argv: Sequence[str]) -> int:
    try:
        charge = charge_of(argv, os.environ)
    except ValueError as error:
        sys.stderr.write(f"usage: python -m slurmtrain.resilience.agent RUN [--crowd N] [--deputies A,B] ...: {error}\n")
        return 2
    os.set_blocking(1, False)
    serve(charge, SystemClock())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
