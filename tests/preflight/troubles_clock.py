"""Troubles of clocks."""

from __future__ import annotations

from tests.preflight.row import Row

FACTS = {"clock": {"t": 1000.5}}
ROWS = [
    Row("clock-skew", "ahead", {"clock": {"t": 1060.0}}, "59.0 s ahead"),
    Row("clock-skew", "behind", {"clock": {"t": 900.0}}, "100.0 s behind"),
]
