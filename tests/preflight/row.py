"""A row of test_troubles.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurmtrain.preflight.finding import Grade


@dataclass(frozen=True)
class Row:
    """A kind of trouble. `facts`: by source, what differs on the odd node; `words`: of the line; `site`, `request`: what differs there;
    `all_nodes`: by source, what is otherwise on the good nodes, too.
    """

    check: str
    name: str
    facts: Mapping[str, Mapping[str, Any]]
    words: str
    grade: Grade = "fail"
    site: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    all_nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
