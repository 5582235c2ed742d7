"""The conductor of the measurements: one thread that tells all members what to do, and hears what came of it.

Members connect (see lines.py), and are known by node and local rank. An order goes to all that it is for before any answer is waited for.
Of a group the first member is told first: it offers a store, and its address goes to the others.

| a member | is |
|---|---|
| has said hello, and owes no answer of an order whose time is over | here |
| said that it starts anew (it was stuck in an order) | awaited for RETURN_S, by whatever wants it next |
| did not answer an order in time | lost, until it answers after all |
| is gone, or has not come | lost, until it says hello |

A member ends an order by itself before the conductor's time is over: `own_limit_s`, and where it cannot it starts anew after `stuck_s`.
"""

from __future__ import annotations

import contextlib
import hmac
import resource
import secrets
import selectors
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurmtrain.clock import Clock
from slurmtrain.config.site import SiteConfig
from slurmtrain.fabric.rendezvous import choose_endpoint, default_interface, local_interfaces, read_routes
from slurmtrain.preflight.lines import BrokenLineError, Line
from slurmtrain.preflight.probing import Member, Order, Reply

RETURN_S = 60.0
"""How long a member may take to start anew: torch, and the device."""
LOOK_S = 0.5
"""How often is looked whether the conductor is called away."""
_HESITATION_S = 3.0
"""The least that a member has between its own limit and that: on a loaded machine it may be slow to notice."""
_BACKLOG = 4096
_SPARE_FILES = 256


def own_limit_s(timeout_s: float) -> float:
    """Time in which a member ends an order by itself, so that its answer is here before `timeout_s`."""
    return timeout_s - min(10.0, 0.3 * timeout_s)


def stuck_s(timeout_s: float) -> float:
    """Time after which a member that could not end an order says so and starts anew: before `timeout_s` where that is 20 s and more."""
    return max(own_limit_s(timeout_s) + _HESITATION_S, timeout_s - min(5.0, 0.15 * timeout_s))


@dataclass
class _Peer:
    """What is known of a member. `owes`: number of the order whose answer is overdue; `why`: it is lost, or empty."""

    line: Line | None = None
    why: str = "it has not reported"
    owes: int = 0
    returns: bool = False


@dataclass
class _Task:
    """One order to some members at the same time. `grouped`: they form a process group; `waiting`: who has not answered."""

    number: int
    members: tuple[Member, ...]
    order: Order
    grouped: bool
    deadline: float = 0.0
    waiting: set[Member] = field(default_factory=set)
    unasked: set[Member] = field(default_factory=set)
    replies: dict[Member, Reply] = field(default_factory=dict)


class Conductor:
    """See Probes. `nodes`: in their order; a member of another node is sent away. `address`: of this host, where members can reach it;
    `called`: whether somebody wants this process for something else: then nobody is waited for any longer.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        tasks_per_node: int,
        clock: Clock,
        *,
        address: str,
        token: str = "",
        called: Callable[[], bool] = lambda: False,
    ) -> None:
        self.token, self._called = token or secrets.token_hex(16), called
        self.address, self._clock = address, clock
        self._nodes = {node: index for index, node in enumerate(nodes)}
        _allow_files(len(nodes) * tasks_per_node + _SPARE_FILES)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)  # noqa: FBT003 socket's own
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._peers: dict[Member, _Peer] = {}
        self._tasks: dict[int, _Task] = {}
        self._number = 0

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def members(self) -> tuple[Member, ...]:
        """See Probes."""
        return self._sorted(member for member, peer in self._peers.items() if not peer.why)

    def wait(self, wanted: Collection[Member], timeout_s: float) -> tuple[Member, ...]:
        """See Probes."""
        deadline = self._clock.monotonic() + timeout_s
        self._turn(0.0)
        while any(self._why(member) for member in wanted) and (left := self._left(deadline)) > 0:
            self._turn(left)
        return self._sorted(member for member in wanted if not self._why(member))

    def each(self, members: Sequence[Member], order: Order, timeout_s: float) -> dict[Member, Reply]:
        """See Probes."""
        tasks = [self._task((member,), order, grouped=False) for member in members]
        self._carry_out(tasks, timeout_s)
        return {task.members[0]: task.replies[task.members[0]] for task in tasks}

    def groups(self, groups: Sequence[tuple[Member, ...]], order: Order, timeout_s: float) -> list[dict[Member, Reply]]:
        """See Probes."""
        everyone = [member for group in groups for member in group]
        assert len(everyone) == len(set(everyone)), "groups of one order are disjoint"
        tasks = [self._task(group, order, grouped=True) for group in groups]
        self._carry_out(tasks, timeout_s)
        return [{member: task.replies[member] for member in task.members} for task in tasks]

    def close(self) -> None:
        """See Probes."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Guest):
                key.data.line.close()
        self._selector.close()
        self._listener.close()

    # -- orders --------------------------------------------------------------------------------------------------------------------------

    def _task(self, members: tuple[Member, ...], order: Order, *, grouped: bool) -> _Task:
        self._number += 1
        return _Task(self._number, members, order, grouped)

    def _carry_out(self, tasks: list[_Task], timeout_s: float) -> None:
        self._await_returning([member for task in tasks for member in task.members])
        deadline = self._clock.monotonic() + timeout_s
        self._tasks = {task.number: task for task in tasks}
        for task in tasks:
            task.deadline = deadline
            self._begin(task)
        while any(task.waiting for task in self._tasks.values()) and (left := self._left(deadline)) > 0:
            self._turn(left)
        for task in tasks:
            self._give_up(task, timeout_s)
        self._tasks = {}

    def _begin(self, task: _Task) -> None:
        """Tell the members of a task, of a group its first; where one of them is lost the group is not tried."""
        lost = {member: why for member in task.members if (why := self._why(member))}
        for member in task.members:
            if member in lost:
                task.replies[member] = Reply(ok=False, said=lost[member])
            elif lost:
                first = next(iter(lost))
                task.replies[member] = Reply(ok=False, said=f"not tried: {name(first)}: {lost[first]}")
        if lost:
            return
        task.waiting, task.unasked = set(task.members), set(task.members[1:])
        names = [name(member) for member in task.members]
        self._tell(task, task.members[0], {"rank": 0, "size": len(names), "names": names, "host": "", "port": 0} if task.grouped else None)

    def _tell(self, task: _Task, member: Member, group: dict[str, Any] | None) -> None:
        left = max(0.0, task.deadline - self._clock.monotonic())
        limits = {"limit_s": own_limit_s(left), "stuck_s": stuck_s(left)}
        message = {"id": task.number, "order": task.order.to_json(), **limits, "group": group}
        peer = self._peers[member]
        task.unasked.discard(member)
        assert peer.line is not None
        try:
            peer.line.say(message)
        except OSError:
            self._gone(member)
            return
        self._watch(peer.line)

    def _offer(self, task: _Task, message: dict[str, Any]) -> None:
        """The first member's store is open: the others are told where."""
        for rank, member in enumerate(task.members):
            if member in task.unasked:
                where = {"host": str(message["host"]), "port": int(message["port"])}
                self._tell(task, member, {"rank": rank, "size": len(task.members), "names": [], **where})

    def _answer(self, task: _Task, member: Member, reply: Reply) -> None:
        """A member's answer. Where the first of a group failed before it offered a store, the others have nothing to do."""
        task.unasked.discard(member)
        if member not in task.waiting:
            return
        task.waiting.discard(member)
        task.replies[member] = reply
        if member == task.members[0]:
            for other in list(task.unasked):
                self._answer(task, other, Reply(ok=False, said=f"{name(member)} opened no store: {reply.said}"))

    def _give_up(self, task: _Task, timeout_s: float) -> None:
        """Time is over: who was asked and has not answered is lost."""
        said = f"no answer in {timeout_s:g} s"
        for member in task.waiting - task.unasked:
            peer = self._peers[member]
            peer.owes, peer.why = task.number, f"{said} to {task.order.do}"
            self._answer(task, member, Reply(ok=False, said=said))

    # -- members -------------------------------------------------------------------------------------------------------------------------

    def _why(self, member: Member) -> str:
        """Why a member can be told nothing; empty where it can."""
        peer = self._peers.get(member)
        return _Peer().why if peer is None else peer.why

    def _sorted(self, members: Iterable[Member]) -> tuple[Member, ...]:
        return tuple(sorted(members, key=lambda member: (self._nodes.get(member[0], len(self._nodes)), member)))

    def _await_returning(self, members: Sequence[Member]) -> None:
        """Wait for those that start anew; who does not come back is lost."""
        deadline = self._clock.monotonic() + RETURN_S
        self._turn(0.0)
        while any(member in self._peers and self._peers[member].returns for member in members):
            left = self._left(deadline)
            if left <= 0:
                break
            self._turn(left)
        for member in members:
            if member in self._peers:
                self._peers[member].returns = False

    def _gone(self, member: Member) -> None:
        peer = self._peers[member]
        peer.line, peer.owes = None, 0
        if not peer.returns:
            peer.why = "its process is gone"
        for task in list(self._tasks.values()):
            self._answer(task, member, Reply(ok=False, said="its process is gone"))

    def _left(self, deadline: float) -> float:
        """How long to wait now: a look's time at most, and not at all where somebody calls."""
        return 0.0 if self._called() else min(LOOK_S, deadline - self._clock.monotonic())

    def _turn(self, timeout_s: float) -> None:
        """Wait for the next events, at most so long, and act on them."""
        for key, events in self._selector.select(timeout_s):
            if key.data is None:
                self._welcome()
            else:
                self._serve(key.data, events)

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                guest = _Guest(Line(sock))
                self._selector.register(guest.line, selectors.EVENT_READ, guest)

    def _serve(self, guest: _Guest, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                guest.line.flush()
            messages = guest.line.heard() if events & selectors.EVENT_READ else []
            if messages is None:
                self._dismiss(guest)
                return
            for message in messages:
                self._hear(guest, message)
        except (OSError, BrokenLineError, ValueError, TypeError, KeyError, AttributeError):
            self._dismiss(guest)
            return
        if guest.line.fileno() >= 0:
            self._watch(guest.line)

    def _watch(self, line: Line) -> None:
        """Be told when the line can be written, as long as something waits for it."""
        key = self._selector.get_key(line)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.full else 0)
        if key.events != events:
            self._selector.modify(line, events, key.data)

    def _dismiss(self, guest: _Guest) -> None:
        """A connection is at its end."""
        if guest.line.fileno() < 0:
            return
        self._selector.unregister(guest.line)
        guest.line.close()
        member = guest.member
        if member is not None and self._peers[member].line is guest.line:
            self._gone(member)

    def _hear(self, guest: _Guest, message: dict[str, Any]) -> None:
        """Raises ValueError, TypeError, KeyError, AttributeError for what is no message."""
        if guest.member is None:
            self._greet(guest, message["hello"])
            return
        task = self._tasks.get(int(message["id"]))
        if "port" in message:
            if task is not None:
                self._offer(task, message)
            return
        peer = self._peers[guest.member]
        peer.returns = bool(message.get("restarts"))
        if peer.owes == int(message["id"]):
            peer.owes, peer.why = 0, ""
        if peer.returns:
            peer.why = "it starts anew"
        if task is not None:
            self._answer(task, guest.member, Reply.from_json(message["reply"]))

    def _greet(self, guest: _Guest, hello: dict[str, Any]) -> None:
        """A member is known from now on; one that was known by the same name is replaced. Raises ValueError for a stranger."""
        if not hmac.compare_digest(str(hello["token"]).encode(), self.token.encode()) or hello["node"] not in self._nodes:
            raise ValueError("a stranger")
        member = (str(hello["node"]), int(hello["local"]))
        former = self._peers.get(member)
        guest.member = member
        self._peers[member] = _Peer(guest.line, str(hello.get("problem", "")))
        if former is not None and former.line is not None:
            self._selector.unregister(former.line)
            former.line.close()
            for task in list(self._tasks.values()):
                self._answer(task, member, Reply(ok=False, said="its process has started anew"))


@dataclass(eq=False)
class _Guest:
    """A connection, and the member that it has turned out to be."""

    line: Line
    member: Member | None = None


def name(member: Member) -> str:
    """Of a member, for people: "n1/3"."""
    return f"{member[0]}/{member[1]}"


def open_conductor(
    site: SiteConfig, nodes: Sequence[str], tasks_per_node: int, clock: Clock, *, called: Callable[[], bool] = lambda: False
) -> Conductor:
    """Listen where the nodes of a site can reach this host. Raises ConfigError where there is no such address, OSError for a port."""
    wanted, default = site.fabric.rendezvous_interface, default_interface(read_routes())
    endpoint = choose_endpoint(wanted, local_interfaces(), one_node=len(nodes) == 1, default=default)
    return Conductor(nodes, tasks_per_node, clock, address=endpoint.address, called=called)


def _allow_files(wanted: int) -> None:
    """Raise this process's own limit of open files, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
