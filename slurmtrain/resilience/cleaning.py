"""Nothing of an attempt survives its end: the agents are told to end what ranks left on their nodes (children that ignore TERM, C4)."""

from __future__ import annotations

from collections.abc import Sequence

from slurmtrain.resilience.agentwire import Order
from slurmtrain.resilience.composition import Composition

LIMIT_S = 15.0
"""How long nodes may take: TERM, a grace, KILL."""
SILENT_S = 5.0
"""A node that said nothing for so long is not waited for."""
_LOOK_S = 0.2
_NOTHING = "nothing was left"


def clean(c: Composition, attempt: int, nodes: Sequence[str]) -> None:
    """Have the agents end what ranks left behind, and wait until those that are alive say that it is done."""
    if not c.agents.watched():
        return
    number, began = next(c.numbers), c.clock.monotonic()
    c.agents.send(Order("sweep", number, attempt))
    said: set[str] = set()
    while c.clock.monotonic() - began < LIMIT_S:
        heard = c.agents.heard()
        for node, one in heard.items():
            if number in one.report.done and node not in said:
                said.add(node)
                if (what := one.report.done[number]) != _NOTHING:
                    c.say(f"node {node} swept: {what}")
        alive = {node for node, one in heard.items() if node in nodes and c.clock.monotonic() - one.at < SILENT_S}
        if alive <= said:
            return
        c.clock.sleep(_LOOK_S)
