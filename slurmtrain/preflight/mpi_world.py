"""Does MPI form one world of the right size over these nodes? A step of one task per node that says; where it fails, its halves are asked.

| what comes of a question | what follows |
|---|---|
| every task says the right size | these nodes are good |
| every task answers, and some say another size | nobody is searched for: it is the launcher or the library (srun --mpi) |
| else, of one node | that node is bad |
| else, of several | both halves are asked, at the same time |

So one bad node of n costs log2(n) + 1 rounds, each within its own time-out. In the end those that are left are asked together once more:
a world that does not form although each half of it does is no fault of one node, and keeps all of them out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurmtrain.clock import Clock
from slurmtrain.errors import one_line
from slurmtrain.preflight.finding import Finding
from slurmtrain.preflight.listing import MPI_WORLD
from slurmtrain.steps.launcher import Step, StepLauncher, StepSpec, is_about, tail

TIMEOUT_S = 60.0
"""Of one question: mpi4py from a shared disk, and MPI's start."""
POLL_S = 0.1
_END_GRACE_S = 1.0
Nodes = tuple[str, ...]
SpecOf = Callable[[Nodes, Path], StepSpec]
"""Nodes, and the folder into which each of them writes NODE.json."""


@dataclass
class _Question:
    nodes: Nodes
    folder: Path
    step: Step
    log: Path
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        return len(self.sizes) == len(self.nodes)

    @property
    def good(self) -> bool:
        return self.answered and set(self.sizes.values()) == {len(self.nodes)}

    def look(self) -> bool:
        """Read what is there; whether the question is over."""
        over = self.step.poll() is not None  # before the files: who has ended has written
        self.sizes = {node: size for node in self.nodes if (size := _size(self.folder / f"{node}.json"))}
        return over or self.answered


class MpiWorld:
    """`folder_of`: where the answers of a round's group go, by their numbers; `hint`: what to do."""

    def __init__(
        self,
        launcher: StepLauncher,
        spec_of: SpecOf,
        folder_of: Callable[[int, int], Path],
        clock: Clock,
        *,
        hint: str,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._launcher, self._spec_of, self._folder_of, self._clock = launcher, spec_of, folder_of, clock
        self._hint, self._timeout_s = hint, timeout_s
        self._asked = 0
        self._wrong_size = ""

    def check(self, nodes: Sequence[str]) -> list[Finding]:
        """What is found of these nodes; nothing: they form one world. Raises LaunchError, OSError."""
        whole = tuple(nodes)
        bad: dict[str, str] = {}
        groups, last = [whole] if whole else [], ""
        while groups:
            troubles = self._ask(groups)
            if self._wrong_size:
                return [self._finding(node, self._wrong_size) for node in whole]
            last = next(iter(troubles.values()), last)
            bad |= {group[0]: why for group, why in troubles.items() if len(group) == 1}
            groups = [half for group in troubles if len(group) > 1 for half in _halves(group)]
        found = [self._finding(node, why) for node, why in bad.items()]
        rest = tuple(node for node in whole if node not in bad)
        if last and rest:
            for why in self._ask([rest]).values():
                found += [self._finding(node, f"{why}, although smaller worlds of these nodes form") for node in rest]
        return found

    def _ask(self, groups: Sequence[Nodes]) -> dict[Nodes, str]:
        """All groups at the same time; why each of those that failed did."""
        self._asked += 1
        asked = [self._start(nodes, number) for number, nodes in enumerate(groups)]
        end = self._clock.monotonic() + self._timeout_s
        try:
            over = [one.look() for one in asked]
            while not all(over) and self._clock.monotonic() < end:
                self._clock.sleep(POLL_S)
                over = [one.look() for one in asked]
        finally:
            self._end(asked)
        return {one.nodes: self._why(one) for one in asked if not one.good}

    def _start(self, nodes: Nodes, number: int) -> _Question:
        folder = self._folder_of(self._asked, number)
        folder.mkdir(parents=True)
        spec = self._spec_of(nodes, folder)
        return _Question(nodes, folder, self._launcher.start(spec), spec.output)

    def _end(self, asked: Sequence[_Question]) -> None:
        """Those that have answered are about to leave; the others are not waited for."""
        limit = self._clock.monotonic() + _END_GRACE_S
        for one in asked:
            if one.answered:
                one.step.wait(max(0.0, limit - self._clock.monotonic()))
            if one.step.poll() is None:
                one.step.abandon()

    def _why(self, one: _Question) -> str:
        count = len(one.nodes)
        if one.answered:
            sizes = " and ".join(str(size) for size in sorted(set(one.sizes.values())))
            self._wrong_size = f"MPI sees a world of {sizes}, and {count} processes were started"
            return self._wrong_size
        silent = [node for node in one.nodes if node not in one.sizes]
        logs = [tail(path) for path in sorted(one.log.parent.glob(one.log.name.replace("%n", "*")))]
        lines = [line.strip() for text in (one.step.words(), *logs) for line in text.splitlines() if line.strip()]
        own = [line for line in lines if any(is_about(line, node) for node in silent)]
        said = (own or lines or [f"no answer in {self._timeout_s:g} s"])[-1]
        return f"MPI forms no world of {count}: {one_line(said, 160)}"

    def _finding(self, node: str, why: str) -> Finding:
        return Finding(node, MPI_WORLD, "fail", why, self._hint)


def _halves(group: Nodes) -> tuple[Nodes, Nodes]:
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]


def _size(path: Path) -> int:
    """0: there is no answer yet, or none that is whole."""
    try:
        return int(json.loads(path.read_bytes())["size"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
