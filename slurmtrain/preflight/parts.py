"""The two parts of a health check: sources look and judge nothing, checks judge what sources saw and touch nothing.

A source runs on the node, in a process of its own with a time limit, and gives facts that JSON can hold. A check is a pure function of
the facts of one source: on the node itself, or wherever the facts were brought. Several checks share a source: a program that takes two
seconds runs once.

To add one: a file in `sources/` with `SOURCE = Source(...)`, unless there is one that sees it already; a file in `checks/` with
`CHECK = Check(...)`; the rows of its troubles in tests/preflight/test_troubles.py. Nothing else needs to know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.request import Request

Facts = Mapping[str, Any]
"""Of one source on one node; what JSON can hold."""


def always(request: Request) -> bool:  # noqa: ARG001 as others of its kind
    return True


def writes_shared(request: Request) -> bool:
    """Whether there are folders that all nodes share: a node by itself, without a run, writes into none."""
    return bool(request.shared)


def on_gpus(request: Request) -> bool:
    return request.on_gpus


@dataclass(frozen=True)
class Source:
    """`look` raises CannotTellError for what it cannot see, and says what to do; `late`: what to do where it does not come to an end.

    `timeout_s`: also what takes no time at all may have to wait for seconds for a processor, where the node is busy: nothing less than
    the default.
    """

    name: str
    look: Callable[[Machine, Request], Facts]
    late: str
    wanted: Callable[[Request], bool] = always
    timeout_s: float = 20.0


def nothing(facts: Facts, request: Request) -> Iterable[Trouble]:  # noqa: ARG001 as others of its kind
    return ()


def no_comparison(facts: Mapping[str, Facts], request: Request) -> Iterable[tuple[str, Trouble]]:  # noqa: ARG001 as others of its kind
    return ()


@dataclass(frozen=True)
class Check:
    """`judge`: one node's facts; `compare`: those of all nodes, by node, giving (node, trouble). Pure. `about`: one line for people.

    Besides what the source gave, facts hold `seen`: when they came to whoever judges, by that one's clock.
    """

    name: str
    source: str
    about: str
    judge: Callable[[Facts, Request], Iterable[Trouble]] = nothing
    compare: Callable[[Mapping[str, Facts], Request], Iterable[tuple[str, Trouble]]] = no_comparison
    wanted: Callable[[Request], bool] = always
