"""The check of the nodes before the world starts: one task each; every node that is unfit, or does not answer in time, is named."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from slurmtrain.atomic import Disk
from slurmtrain.clock import Clock
from slurmtrain.preflight.answer import NodeAnswer, read_answer
from slurmtrain.preflight.judge import Expected, NodeFault, judge
from slurmtrain.rundir import AttemptDir
from slurmtrain.steps.launcher import Step, StepLauncher, StepSpec

POLL_S = 0.2
_END_GRACE_S = 2.0


@dataclass(frozen=True)
class CheckResult:
    """What the nodes said. `interrupted`: the supervisor was called away; nothing was judged."""

    faults: tuple[NodeFault, ...]
    answers: dict[str, NodeAnswer]
    seconds: float
    interrupted: bool = False


def write_nonce(attempt: AttemptDir, disk: Disk) -> str:
    """Leave a random word for the nodes to read; the word. Raises OSError."""
    word = secrets.token_hex(8)
    disk.write(attempt.nonce, word.encode())
    return word


def read_answers(attempt: AttemptDir, nodes: tuple[str, ...], nonce: str) -> dict[str, NodeAnswer]:
    """Answers that are there; one of an earlier check (another nonce) does not count until its node has had its say."""
    found = {node: read_answer(attempt.node_answer(node)) for node in nodes}
    return {node: answer for node, answer in found.items() if answer is not None and answer.nonce == nonce}


def check_nodes(
    launcher: StepLauncher,
    spec: StepSpec,
    attempt: AttemptDir,
    expected: Expected,
    *,
    clock: Clock,
    timeout_s: float,
    interrupted: Callable[[], bool] = lambda: False,
) -> CheckResult:
    """Run the step and judge. Raises LaunchError when the launcher is not there."""
    start = clock.monotonic()
    step = launcher.start(spec)
    try:
        while True:
            answers = read_answers(attempt, expected.nodes, expected.nonce)
            over = step.poll() is not None or clock.monotonic() - start >= timeout_s
            if len(answers) == len(expected.nodes) or over or interrupted():
                break
            clock.sleep(POLL_S)
    finally:
        if step.poll() is None:
            step.wait(_END_GRACE_S)
        if step.poll() is None:
            step.end(_END_GRACE_S)
    answers = read_answers(attempt, expected.nodes, expected.nonce)
    seconds = clock.monotonic() - start
    if interrupted():
        return CheckResult((), answers, seconds, interrupted=True)
    silent = _silent(attempt, step, expected, set(answers))
    return CheckResult(tuple(judge(answers, expected, silent=silent)), answers, seconds)


def _silent(attempt: AttemptDir, step: Step, expected: Expected, answered: set[str]) -> dict[str, str]:
    """For nodes without an answer: the last line about them, of the check's output or of the launcher."""
    lines = [line for path in sorted(attempt.path.glob("check-*.log")) for line in _lines(path.read_text(errors="replace"))]
    words = _lines(step.words())
    said: dict[str, str] = {}
    for node in expected.nodes:
        if node not in answered:
            own = [line for line in (*words, *lines) if node in line]
            said[node] = (own or words or lines or [""])[-1]
    return said


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
