"""What the checks of GPUs share: the same trouble of several GPUs is one line, and what most have is the measure of the odd one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Facts
from slurmtrain.units import counted

T = TypeVar("T", bound=Hashable)
DAY_S = 86400.0


def gpus(facts: Facts) -> list[Mapping[str, Any]]:
    """The GPUs that answer; of one that is lost the check gpu-lost tells alone."""
    return [gpu for gpu in facts["gpus"] if not gpu["dead"]]


def folded(troubles: Iterable[tuple[int, Trouble]]) -> Iterator[Trouble]:
    """Troubles by the index of their GPU: those that are the same are one, with all its GPUs as its item."""
    groups: dict[Trouble, list[int]] = {}
    for index, trouble in troubles:
        groups.setdefault(trouble, []).append(index)
    for trouble, indices in groups.items():
        yield replace(trouble, item=named(indices))


def named(indices: Iterable[int]) -> str:
    """The indices in ranges.

    >>> named([3]), named([0, 1, 2, 5])
    ('GPU 3', 'GPUs 0-2,5')
    """
    spans: list[list[int]] = []
    for index in sorted(set(indices)):
        if spans and index == spans[-1][-1] + 1:
            spans[-1][1:] = [index]
        else:
            spans.append([index])
    text = ",".join("-".join(map(str, span)) for span in spans)
    return f"GPU{'s' if len(text.split(',')) > 1 or '-' in text else ''} {text}"


def most(values: Iterable[T]) -> T | None:
    """What most have; of several that are as common the first."""
    return next((value for value, _ in Counter(values).most_common(1)), None)


def told_once(nodes: list[str], trouble: Trouble) -> Iterator[tuple[str, Trouble]]:
    """What is the same on several nodes, and no reason to keep any out, is told of the first."""
    if nodes:
        others = f" (and on {counted(len(nodes) - 1, 'other node')})" if len(nodes) > 1 else ""
        yield nodes[0], replace(trouble, said=f"{trouble.said}{others}")
