"""Nodes that differ from the others, for the checks that compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

_SHOWN = 3


def odd_ones(values: Mapping[str, str]) -> tuple[str | None, list[str]]:
    """The value of more than half of the nodes, and the nodes that have another; where none has a majority: None, and all nodes.

    >>> odd_ones({"n1": "a", "n2": "b", "n3": "a"}), odd_ones({"n1": "a", "n2": "b"}), odd_ones({"n1": "a", "n2": "a"})
    (('a', ['n2']), (None, ['n1', 'n2']), ('a', []))
    """
    if not values:
        return None, []
    value, count = Counter(values.values()).most_common(1)[0]
    if 2 * count <= len(values):
        return None, list(values)
    return value, [node for node, own in values.items() if own != value]


def spread(values: Mapping[str, str]) -> str:
    """Who has which value.

    >>> spread({"n1": "9000", "n2": "1500", "n3": "9000"})
    '9000 on n1 n3, 1500 on n2'
    """
    nodes: dict[str, list[str]] = {}
    for node, value in values.items():
        nodes.setdefault(value, []).append(node)
    return ", ".join(f"{value} on {_some(names)}" for value, names in nodes.items())


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return " ".join(names[:_SHOWN]) + more
