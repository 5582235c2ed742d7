"""How long a program may take that a source runs: the source ends it, before it is ended itself."""

from __future__ import annotations

from slurmtrain.preflight.request import Request

SHARE = 0.75
"""Of the time that the source has."""


def within(request: Request, source_s: float = 20.0) -> float:
    """Seconds for all that a source of this limit runs, one after another."""
    return SHARE * min(source_s, request.site.preflight.timeout_s)
