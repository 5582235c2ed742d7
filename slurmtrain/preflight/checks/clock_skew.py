"""Clocks that differ: logs that cannot be put in order, tokens and leases that are over before they began.

A node looks at its clock after it was asked and before its answer is read: what is outside that span is skew, whatever a start takes.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request

_REMEDY = "start chronyd (or ntpd) on the node, and see `chronyc tracking`"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    late, early = facts["t"] - facts["seen"], request.t - facts["t"]
    skew = max(late, early)
    if skew > request.site.preflight.clock_skew_s:
        yield Trouble("fail", f"the clock is {skew:.1f} s {'ahead' if late > early else 'behind'} that of the node that asks", _REMEDY)


CHECK = Check("clock-skew", "clock", "the node's clock agrees with that of the node that asks", judge)
