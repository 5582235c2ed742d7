"""The doors of the soak's stage: each call of one is a moment at which the supervisor may be killed, the disk be full, time pass."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slurmtrain.resilience.agents import Heard
from slurmtrain.resilience.agentwire import NodeReport, Order, RankSight
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FakeDisk
from tests.fakes.slurm import FakeSlurm


class Killed(BaseException):
    """SIGKILL to the supervisor: no `except Exception`, no file, no word."""


class Fate:
    """Counts calls of doors; `after(n)`: the n-th from now on is the supervisor's last."""

    def __init__(self) -> None:
        self._left = -1

    def after(self, calls: int) -> None:
        self._left = calls

    def spare(self) -> None:
        self._left = -1

    def meet(self) -> None:
        if self._left == 0:
            self._left = -1
            raise Killed
        self._left -= self._left > 0


class SoakClock(FakeClock):
    """Without pauses for other threads: there are none. `limit`: no start of a job takes so long."""

    def __init__(self, fate: Fate) -> None:
        super().__init__(time.time())  # the files' own times are real: none is then in its future
        self._fate, self.limit = fate, float("inf")

    def sleep(self, seconds: float) -> None:
        self._fate.meet()
        assert self.time() < self.limit, "the supervisor waits for ever"
        self.advance(seconds)

    def forget(self) -> None:
        """What was arranged and is not due yet does not happen."""
        self._due.clear()


class SoakDisk(FakeDisk):
    """`full`: ENOSPC; `slow_s`: what each call takes. A supervisor may be killed before a call, or after it."""

    def __init__(self, clock: SoakClock, fate: Fate) -> None:
        super().__init__()
        self._clock, self._fate = clock, fate
        self.full, self.slow_s = False, 0.0

    def write(self, path: Path, data: bytes) -> None:
        super().write(path, data)
        self._fate.meet()

    def _meet(self, method: str, path: Path) -> None:
        self._fate.meet()
        if self.slow_s:
            self._clock.advance(self.slow_s)
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


class SoakSlurm(FakeSlurm):
    """Asking is a moment, too."""

    def __init__(self, clock: SoakClock, fate: Fate, nodes: Sequence[str]) -> None:
        super().__init__(clock, nodes)
        self._fate = fate

    def _ask(self, what: str) -> None:
        self._fate.meet()
        super()._ask(what)


Look = Callable[[str], tuple[int, tuple[RankSight, ...]] | None]
"""What the agent of a node sees: the attempt and its ranks; None: it does not speak."""


class SoakAgents:
    """Agents that tell at each look what is so; `gone`: there are none."""

    def __init__(self, clock: SoakClock, look: Look) -> None:
        self._clock, self._look = clock, look
        self._heard: dict[str, Heard] = {}
        self._nodes: tuple[str, ...] = ()
        self._done: dict[int, str] = {}
        self.gone = False

    def start(self, nodes: Sequence[str]) -> None:
        self._nodes = tuple(nodes)

    def heard(self) -> Mapping[str, Heard]:
        now = self._clock.monotonic()
        for node in () if self.gone else self._nodes:
            if (seen := self._look(node)) is not None:
                number = self._heard[node].report.number + 1 if node in self._heard else 1
                self._heard[node] = Heard(NodeReport(node, number, seen[0], now, seen[1], done=dict(self._done)), now)
        return {node: one for node, one in self._heard.items() if node in self._nodes}

    def send(self, order: Order) -> None:
        if order.kind in {"sweep", "stacks"}:
            self._done[order.number] = "nothing was left"

    def watched(self) -> bool:
        return not self.gone

    def close(self) -> None:
        """Of a supervisor that ends, or is killed: the next one starts its own."""
        self._heard, self._nodes, self._done = {}, (), {}
