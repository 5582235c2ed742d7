"""Which nodes were fit a short while ago: rows of what the history tells of one node, now = 1000, cache_s = 600."""

from __future__ import annotations

import pytest

from slurmtrain.preflight.cache import recently_fit
from slurmtrain.preflight.history import Entry, Level

NOW, CACHE_S = 1000.0, 600.0


def at(t: float, level: Level = "quick", *, ok: bool = True, node: str = "n1") -> Entry:
    return Entry(t, node, level, ok)


ROWS = [
    ("nothing is known", [], "quick", False),
    ("fit", [at(900)], "quick", True),
    ("fit, just now", [at(1000)], "quick", True),
    ("fit, at the limit", [at(400)], "quick", False),
    ("fit, just within it", [at(401)], "quick", True),
    ("fit, too long ago", [at(100)], "quick", False),
    ("measured says more than looked at", [at(900, "full")], "quick", True),
    ("looked at says less than measured", [at(900)], "full", False),
    ("measured", [at(900, "full")], "full", True),
    ("measured, then looked at", [at(900, "full"), at(950)], "full", True),
    ("some checks alone say nothing good", [at(900, "part")], "quick", False),
    ("a fault since", [at(900), at(950, ok=False)], "quick", False),
    ("a fault since, by some checks alone", [at(900), at(950, "part", ok=False)], "quick", False),
    ("a fault since, lines in another order", [at(950, ok=False), at(900)], "quick", False),
    ("a fault at the same moment", [at(900), at(900, ok=False)], "quick", False),
    ("a fault before", [at(800, ok=False), at(900)], "quick", True),
    ("a fault between", [at(800), at(850, ok=False), at(900)], "quick", True),
    ("measured, a fault, looked at", [at(800, "full"), at(850, ok=False), at(900)], "full", False),
    ("another clock is a little ahead", [at(1030)], "quick", True),
    ("another clock is far ahead", [at(5000)], "quick", False),
    ("a fault by a clock that is far ahead", [at(900), at(5000, ok=False)], "quick", False),
    ("another node", [at(900, node="n2")], "quick", False),
]


@pytest.mark.parametrize(("name", "history", "level", "fit"), ROWS, ids=[row[0] for row in ROWS])
def test_rows(name, history, level, fit):
    assert recently_fit(history, ["n1"], level, NOW, CACHE_S) == ({"n1"} if fit else set())


def test_of_those_that_are_asked_for_less_those_that_are_avoided():
    history = [at(900, node=node) for node in ("n1", "n2", "n3")]
    assert recently_fit(history, ["n1", "n2"], "quick", NOW, CACHE_S, avoided={"n2": "hang"}) == {"n1"}


def test_no_time_is_no_cache():
    assert recently_fit([at(NOW)], ["n1"], "quick", NOW, 0.0) == set()
