"""Which nodes may not take part, and why: a pure function of the nodes' answers and what was promised.

What every start needs (an answer, the same folder, one release, CPUs, memory, limits) is judged here; the health of nodes by the checks
of `registry`, where the request asks for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slurmtrain.preflight.answer import UNLIMITED, NodeAnswer
from slurmtrain.preflight.diagnosis import diagnose
from slurmtrain.preflight.finding import OUT, Finding
from slurmtrain.preflight.request import Request
from slurmtrain.units import format_size


@dataclass(frozen=True)
class Expected:
    """What each node must be. `cpus`, `memory_bytes`: at least (0: not checked); `ulimits`: bash's flag -> value or "unlimited";
    `request`: what the nodes were asked, where their health is judged.
    """

    nodes: tuple[str, ...]
    nonce: str
    version: str
    cpus: int = 0
    memory_bytes: int = 0
    ulimits: Mapping[str, str] = field(default_factory=dict)
    request: Request | None = None


@dataclass(frozen=True)
class NodeFault:
    """One line: what is wrong with this node and what to do."""

    node: str
    problem: str

    def __str__(self) -> str:
        return f"{self.node}: {self.problem}"


def judge(answers: Mapping[str, NodeAnswer], expected: Expected, *, silent: Mapping[str, str] | None = None) -> list[NodeFault]:
    """Faults in the order of the nodes; empty: the world may start. `silent`: what is known of nodes that did not answer."""
    faults: list[NodeFault] = []
    python = _most(answers)
    unhealthy = [one for one in findings(answers, expected) if one.grade in OUT]
    for node in expected.nodes:
        answer = answers.get(node)
        if answer is None:
            why = (silent or {}).get(node, "")
            faults.append(NodeFault(node, f"no answer to the check of the node{f': {why}' if why else ''}"))
        else:
            faults += [NodeFault(node, problem) for problem in _problems(answer, expected, python)]
            faults += [NodeFault(node, str(one)) for one in unhealthy if one.node == node]
    return faults


def findings(answers: Mapping[str, NodeAnswer], expected: Expected) -> list[Finding]:
    """What the checks of health find, warnings too; none where nobody asked for them."""
    return [] if expected.request is None else diagnose(answers, expected.request)


def _most(answers: Mapping[str, NodeAnswer]) -> str:
    """The Python version of most nodes."""
    return Counter(a.python for a in answers.values()).most_common(1)[0][0] if answers else ""


def _problems(answer: NodeAnswer, expected: Expected, python: str) -> Iterator[str]:
    yield from answer.problems
    if answer.nonce != expected.nonce:
        yield "sees another run folder than the batch host: the root must be on a file system that all nodes see"
    if answer.version != expected.version:
        yield f"slurmtrain {answer.version} there, {expected.version} on the batch host: install the same on all nodes"
    if answer.python != python:
        yield f"python {answer.python} there, {python} on the other nodes: name one interpreter by `python` in the job or the site"
    if answer.cpus < expected.cpus:
        yield f"{answer.cpus} CPUs for the job there, {expected.cpus} needed: ask for --cpus-per-task"
    if answer.memory_bytes < expected.memory_bytes:
        found, wanted = format_size(answer.memory_bytes), format_size(expected.memory_bytes)
        yield f"{found} of memory for the job there, {wanted} needed: ask for --mem=0"
    for flag, least in expected.ulimits.items():
        limit = answer.limits.get(flag)
        if limit is not None and _too_low(limit, least):
            yield f"ulimit -{flag} is {limit} there, {least} wanted: raise it for slurmd (the limits of its systemd unit)"


def _too_low(found: int, wanted: str) -> bool:
    if found == UNLIMITED:
        return False
    return wanted == "unlimited" or found < int(wanted)
