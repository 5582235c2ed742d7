"""The fake of slurmtrain.preflight.probing.Probes: a cluster of figures, on the fake clock.

Rates are those of the slowest device, node or pair that takes part; each is less by chance, up to `noise`. An order takes ORDER_S; one that
a member of it hangs in takes its whole time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from itertools import combinations

from slurmtrain.preflight.probing import Member, Order, Reply
from tests.fakes.clock import FakeClock

ORDER_S = 1.0
DEVICE = "NVIDIA H100 80GB HBM3"
Group = tuple[Member, ...]


class FakeProbes:
    """`tasks`: per node. What is wrong is set by the test, by name of node, by member, or by pair of nodes."""

    def __init__(self, clock: FakeClock, nodes: Sequence[str], tasks: int = 1, *, noise: float = 0.03, seed: int = 0) -> None:
        self.clock, self.nodes, self.tasks, self.noise = clock, tuple(nodes), tasks, noise
        self.chance = random.Random(seed)
        self.tflops, self.node_gb_s, self.pair_gb_s, self.disk_mb_s = 700.0, 48.0, 40.0, 2000.0
        self.slow_device: dict[Member, float] = {}
        self.slow_link: dict[str, float] = {}
        self.slow_pair: dict[frozenset[str], float] = {}
        self.slow_disk: dict[str, float] = {}
        self.slow_nic: dict[tuple[str, str], float] = {}
        self.absent, self.hung, self.dead = set[str](), set[str](), set[str]()
        self.broken, self.full_disk = set[str](), set[str]()
        self.broken_pair: set[frozenset[str]] = set()
        self.silent_pair: set[frozenset[str]] = set()
        self.wrong_sum: set[str] = set()
        self.wrong_product: set[Member] = set()
        self.devices: dict[str, str] = {}
        self.transport: dict[str, str] = {}
        self.nominal_gbps = 400.0
        self.lost: dict[Member, str] = {}
        self.asked: list[tuple[str, list[tuple[Member, ...]]]] = []
        self.before: Callable[[str], None] = lambda do: None
        self.closed, self._late = False, False

    # -- the door

    def members(self) -> tuple[Member, ...]:
        return tuple(m for node in self.nodes for local in range(self.tasks) if not self._why(m := (node, local)))

    def wait(self, wanted: Collection[Member], timeout_s: float) -> tuple[Member, ...]:
        there = tuple(member for member in self.members() if member in set(wanted))
        self.clock.advance(0.1 if len(there) == len(wanted) else timeout_s)
        return there

    def each(self, members: Sequence[Member], order: Order, timeout_s: float) -> dict[Member, Reply]:
        return {group[0]: own[group[0]] for group, own in self._carry_out([(m,) for m in members], order, timeout_s)}

    def groups(self, groups: Sequence[tuple[Member, ...]], order: Order, timeout_s: float) -> list[dict[Member, Reply]]:
        return [own for _, own in self._carry_out(list(groups), order, timeout_s)]

    def close(self) -> None:
        self.closed = True

    # -- the cluster

    def _why(self, member: Member) -> str:
        if member[0] in self.absent or member[1] >= self.tasks:
            return "it has not reported"
        return self.lost.get(member, "")

    def _carry_out(self, groups: list[Group], order: Order, timeout_s: float) -> list[tuple[Group, dict[Member, Reply]]]:
        everyone = [member for group in groups for member in group]
        assert len(everyone) == len(set(everyone)), "groups of one order are disjoint"
        if groups:
            self.before(order.do)
            self.asked.append((order.do, groups))
        self._late = False
        found = [(group, self._group(group, order, timeout_s)) for group in groups]
        if groups:
            self.clock.advance(timeout_s if self._late else min(ORDER_S, timeout_s))
        return found

    def _group(self, group: tuple[Member, ...], order: Order, timeout_s: float) -> dict[Member, Reply]:
        lost = {member: why for member in group if (why := self._why(member))}
        if lost:
            first = next(iter(lost))
            return {m: Reply(ok=False, said=lost.get(m, f"not tried: {first[0]}: {lost[first]}")) for m in group}
        if gone := {m: self._end(m, order, timeout_s) for m in group if m[0] in self.hung | self.dead}:
            first = next(iter(gone))
            return {m: gone.get(m, Reply(ok=False, said=f"{order.do}: {first[0]} does not come to the roll call")) for m in group}
        return self._answers(group, order)

    def _end(self, member: Member, order: Order, timeout_s: float) -> Reply:
        said = "its process is gone" if member[0] in self.dead else f"no answer in {timeout_s:g} s"
        self._late = self._late or member[0] in self.hung
        self.lost[member] = said
        return Reply(ok=False, said=said)

    def _answers(self, group: tuple[Member, ...], order: Order) -> dict[Member, Reply]:
        if order.do in {"matmul", "storage", "transport"}:
            return {member: getattr(self, f"_{order.do}")(member, order) for member in group}
        if (fault := self._fault(group)) is not None:
            return {member: Reply(ok=False, said=f"{order.do}: {fault}") for member in group}
        if order.do == "nic":
            return {member: self._nic(member, group) for member in group}
        figures: dict[str, float] = {}
        for size in order.sizes or (1 << 28,):
            rate = self._rate(group, self.node_gb_s if order.do == "reduce" else self.pair_gb_s)
            own = {"send_gb_s": rate, "receive_gb_s": rate}
            if order.do == "reduce":
                share = 2 * (len(group) - 1) / len(group)
                own = {"busbw_gb_s": rate, "seconds": share * size / rate / 1e9} if share else {"seconds": 0.01}
            figures |= {key: value for name, value in own.items() for key in (name, f"{name}@{size}")}
        return {m: Reply(ok=True, figures=figures, words=dict(self._transport(m, order).words)) for m in group}

    def _fault(self, group: tuple[Member, ...]) -> str | None:
        nodes = {node for node, _ in group}
        if len(nodes) > 1 and (nodes & self.broken or any(pair <= nodes for pair in self.broken_pair)):
            return "connection reset by peer"
        if any(pair <= nodes for pair in self.silent_pair):
            self._late = True
            return "messages did not come to an end in time"
        return f"wrong sum: 7 of 64 elements of an all-reduce over {len(group)} members" if nodes & self.wrong_sum else None

    def _rate(self, group: tuple[Member, ...], healthy: float) -> float:
        nodes = sorted({node for node, _ in group})
        rates = [self.slow_link[node] for node in nodes if node in self.slow_link and len(nodes) > 1]
        rates += [self.slow_pair[pair] for two in combinations(nodes, 2) if (pair := frozenset(two)) in self.slow_pair]
        return self._noisy(min([healthy, *rates]))

    def _noisy(self, rate: float) -> float:
        return rate * (1 - self.noise * self.chance.random())

    def _matmul(self, member: Member, order: Order) -> Reply:
        words = {"device": self.devices.get(member[0], DEVICE), "checksum": "bad" if member in self.wrong_product else "good"}
        rate = self._noisy(self.slow_device.get(member, self.tflops))
        return Reply(ok=True, figures={"tflops": rate, "size": float((order.sizes or (8192,))[0])}, words=words)

    def _storage(self, member: Member, order: Order) -> Reply:
        if member[0] in self.full_disk:
            return Reply(ok=False, said="storage: [Errno 122] Disk quota exceeded")
        rate = self._noisy(self.slow_disk.get(member[0], self.disk_mb_s))
        return Reply(ok=True, figures={"write_mb_s": rate, "read_mb_s": 2 * rate, "bytes": float(order.bytes or 1 << 28)})

    def _transport(self, member: Member, order: Order) -> Reply:
        return Reply(ok=True, words={"transport": self.transport.get(member[0], "IB GPUDirect NVLS P2P")})

    def _nic(self, member: Member, group: tuple[Member, ...]) -> Reply:
        """The receiver's side slows the sender down, too."""
        others = [node for node, _ in group]
        rates = {nic: min(self.slow_nic.get((node, nic), 0.96 * self.nominal_gbps) for node in others) for nic in ("mlx5_0", "mlx5_1")}
        return Reply(ok=True, figures={f"{nic}.write_gbps": self._noisy(rate) for nic, rate in rates.items()})
