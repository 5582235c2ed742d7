"""The check of the nodes before the world starts: one task each, all at once, and each node answers for itself.

A launcher that cannot reach a node may end the whole step, so nodes that are doubted have a step each, and so has every node that a step
left without an answer. A node that is dead or hangs then costs its own answer alone:

| who has answered well | how long the rest is waited for |
|---|---|
| as many as the world wants | `GRACE_S` |
| as many as the smallest world wants (elastic) | `patience_s`, `ELASTIC_GRACE_S` where nobody says another |
| fewer | the limit of the check |
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurmtrain.atomic import Disk
from slurmtrain.clock import Clock
from slurmtrain.preflight.answer import NodeAnswer, read_answer
from slurmtrain.preflight.finding import Finding
from slurmtrain.preflight.judge import Expected, NodeFault, findings, judge
from slurmtrain.steps.launcher import Step, StepLauncher, StepSpec, is_about

POLL_S = 0.2
GRACE_S, ELASTIC_GRACE_S = 3.0, 20.0
RETRY_S = 10.0
"""After which a node without an answer is asked by a step of its own."""
MOST_STEPS = 32
"""Of single nodes: each is a process here and a request to Slurm."""
_END_GRACE_S = 2.0


@dataclass(frozen=True)
class Wanted:
    """How many nodes the world takes, at most and at least, how long a check may take, and how long the rest is waited for once as many as
    the least have answered well; `any_answer`: once they have answered at all.
    """

    most: int
    least: int
    timeout_s: float
    patience_s: float = ELASTIC_GRACE_S
    any_answer: bool = False


@dataclass(frozen=True)
class CheckResult:
    """What the nodes said. `faults`: of those that answered badly, or had their time; `late`: of those that were not waited for longer,
    what is known; `interrupted`: the one who asks was called away, nothing was judged; `findings`: of the checks of health, warnings too.
    """

    faults: tuple[NodeFault, ...]
    answers: dict[str, NodeAnswer]
    seconds: float
    late: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False
    findings: tuple[Finding, ...] = ()

    def fit(self, nodes: Collection[str]) -> list[str]:
        """Those of the nodes that may take part."""
        unfit = {fault.node for fault in self.faults} | set(self.late)
        return [node for node in nodes if node not in unfit]

    def problems(self) -> dict[str, str]:
        """The first fault of each node."""
        found: dict[str, str] = {}
        for fault in self.faults:
            found.setdefault(fault.node, fault.problem)
        return found


def write_nonce(file: Path, disk: Disk) -> str:
    """Leave a random word for the nodes to read; the word. Raises OSError."""
    word = secrets.token_hex(8)
    disk.write(file, word.encode())
    return word


def read_answers(folder: Path, nodes: Collection[str], nonce: str, now: float) -> dict[str, NodeAnswer]:
    """Answers that are there; one of an earlier check (another nonce) does not count until its node has had its say."""
    found = {node: read_answer(folder / f"{node}.json") for node in nodes}
    return {node: replace(answer, seen=now) for node, answer in found.items() if answer is not None and answer.nonce == nonce}


class Check:
    """One check of all candidates. `spec_of`: the step that checks some of them; `answers`: the folder they write into; `logs`: that of
    check-*.log; `doubted`: nodes that get a step of their own at once.
    """

    def __init__(
        self,
        launcher: StepLauncher,
        spec_of: Callable[[tuple[str, ...]], StepSpec],
        expected: Expected,
        wanted: Wanted,
        *,
        answers: Path,
        logs: Path,
        clock: Clock,
        doubted: Collection[str] = (),
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._launcher, self._spec_of, self._expected, self._wanted = launcher, spec_of, expected, wanted
        self._folder, self._logs = answers, logs
        self._clock, self._doubted, self._interrupted = clock, set(doubted), interrupted
        self._steps: dict[tuple[str, ...], Step] = {}
        self._answers: dict[str, NodeAnswer] = {}
        self._enough_since: dict[int, float] = {}
        self._good = (0, 0)
        """Answers that were judged, and how many of them are good."""

    def run(self) -> CheckResult:
        """Ask, wait, judge. Raises LaunchError when the launcher is not there."""
        start = self._clock.monotonic()
        trusted = tuple(node for node in self._expected.nodes if node not in self._doubted)
        try:
            if trusted and not self._interrupted():
                self._start(trusted)
            self._ask_again(start)
            while not self._over(start):
                self._clock.sleep(POLL_S)
                self._ask_again(start)
        finally:
            left = self._end()
        self._read()
        seconds = self._clock.monotonic() - start
        if self._interrupted():
            return CheckResult((), self._answers, seconds, interrupted=True)
        return self._judged(seconds, set() if seconds >= self._wanted.timeout_s else left)

    def _start(self, nodes: tuple[str, ...]) -> None:
        self._steps[nodes] = self._launcher.start(self._spec_of(nodes))

    def _missing(self) -> set[str]:
        return {node for node in self._expected.nodes if node not in self._answers}

    def _alone(self) -> set[str]:
        return {nodes[0] for nodes in self._steps if len(nodes) == 1}

    def _ask_again(self, start: float) -> None:
        """A step each for nodes that are doubted, or were left without an answer by the common one."""
        if self._interrupted():
            return
        common = next((step for nodes, step in self._steps.items() if len(nodes) > 1), None)
        if (common is not None and common.poll() is not None) or self._clock.monotonic() - start >= RETRY_S:
            self._read()
            self._doubted |= self._missing()
        alone = self._alone()
        for node in sorted(self._doubted - alone)[: MOST_STEPS - len(alone)]:
            self._start((node,))

    def _read(self) -> None:
        self._answers |= read_answers(self._folder, self._missing(), self._expected.nonce, self._clock.time())

    def _over(self, start: float) -> bool:
        self._read()
        missing, now = self._missing(), self._clock.monotonic()
        if not missing or now - start >= self._wanted.timeout_s or self._interrupted():
            return True
        asked = missing <= self._alone() or len(self._alone()) >= MOST_STEPS
        if asked and all(step.poll() is not None for step in self._steps.values()):
            return True
        return self._enough(now)

    def _enough(self, now: float) -> bool:
        if self._good[0] != len(self._answers):
            bad = {fault.node for fault in judge(self._answers, self._expected, silent={})}
            self._good = (len(self._answers), len(set(self._answers) - bad))
        good = self._good[1]
        enough = len(self._answers) if self._wanted.any_answer else good
        graces = ((good, self._wanted.most, GRACE_S), (enough, self._wanted.least, self._wanted.patience_s))
        return any(have >= least and now - self._enough_since.setdefault(least, now) >= grace_s for have, least, grace_s in graces)

    def _end(self) -> set[str]:
        """Let steps leave that are about to; the others are not waited for, their nodes may be dead. Nodes of those others."""
        limit = self._clock.monotonic() + (0.0 if self._missing() else _END_GRACE_S)
        left: set[str] = set()
        for nodes, step in self._steps.items():
            if step.poll() is None:
                step.wait(max(0.0, limit - self._clock.monotonic()))
            if step.poll() is None:
                step.abandon()
                left |= set(nodes)
        return left

    def _judged(self, seconds: float, left: set[str]) -> CheckResult:
        """`left`: nodes whose steps had not ended. One that was also asked alone, and whose own step has ended, has had its time."""
        said = self._said()
        own = {nodes[0] for nodes, step in self._steps.items() if len(nodes) == 1} - left
        late = {node: "it did not answer its check while others did" for node in said if node in left and node not in own}
        faults = [fault for fault in judge(self._answers, self._expected, silent=said) if fault.node not in late]
        return CheckResult(tuple(faults), self._answers, seconds, late, findings=tuple(findings(self._answers, self._expected)))

    def _said(self) -> dict[str, str]:
        """For nodes without an answer: the last line about them, of the check's output or of the launcher."""
        lines = [line for path in sorted(self._logs.glob("check-*.log")) for line in _lines(path.read_text(errors="replace"))]
        words = list(dict.fromkeys(line for step in self._steps.values() for line in _lines(step.words())))
        said: dict[str, str] = {}
        for node in self._expected.nodes:
            if node not in self._answers:
                own = [line for line in (*words, *lines) if is_about(line, node)]
                said[node] = (own or words or lines or [""])[-1]
        return said


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
