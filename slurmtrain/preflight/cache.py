"""Which nodes were found fit a short while ago: by the history of preflights and nothing else. Pure.

| newest that the history tells of a node | fit for `cache_s` |
|---|---|
| fit at the level that is asked for, or a higher one | yes |
| fit at a lower level (quick, and full is asked for; some checks alone) | what was found before it decides |
| not fit, at any level | no, whatever was found before |
| a time that is still to come (clocks differ) | as if it were now, up to `AHEAD_S`; beyond that it tells nothing good |

A node that the run avoids (exclude.json) is not fit, whenever that was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slurmtrain.preflight.history import LEVELS, Entry, Level

AHEAD_S = 60.0


def recently_fit(
    history: Iterable[Entry], nodes: Collection[str], level: Level, now: float, cache_s: float, *, avoided: Collection[str] = ()
) -> set[str]:
    """Those of the nodes. `history`: entries in any order, as `history.read_newest` has them; `avoided`: nodes with a fault elsewhere.

    >>> recently_fit([Entry(100.0, "n1", "full", ok=True), Entry(160.0, "n2", "quick", ok=True)], ["n1", "n2"], "full", 400.0, 600.0)
    {'n1'}
    """
    fit: dict[str, float] = {}
    faults: dict[str, float] = {}
    for one in history:
        if not one.ok:
            faults[one.node] = max(one.t, faults.get(one.node, one.t))
        elif LEVELS.index(one.level) >= LEVELS.index(level) and now - cache_s < one.t <= now + AHEAD_S:
            fit[one.node] = max(one.t, fit.get(one.node, one.t))
    return {node for node in nodes if node in fit and node not in avoided and not faults.get(node, float("-inf")) >= fit[node]}
