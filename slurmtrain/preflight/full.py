"""The measurements of a full preflight, in order; each is bounded in time, and a node that is found bad takes no further part.

| phase | checks | time |
|---|---|---|
| probes start | probe | timeouts.node_check_timeout_s; once half of them are there START_TIMES what these took, and START_S |
| every device multiplies | matmul, matmul-result | an order each: MOST_S |
| all-reduce within each NVLink domain | domain-reduce | as above |
| all-reduce between all nodes, the search, the tournament | world-reduce, pair | an order for each group trial; pairs_s |
| ib_write_bw | nic-rate | by the number of NICs |
| writing and reading, all nodes at once | storage-rate | an order each |
| what NCCL chose | transport | an order |

All of it within preflight.full_s: what could then not be measured is unknown, and keeps the nodes out. A node that hangs costs one
time-out, and is out. What is slow and what is not: rates.py; again and again, until it is certain: trials.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from slurmtrain.clock import Clock
from slurmtrain.preflight.baseline import Baseline
from slurmtrain.preflight.ledger import CalledAwayError, FullResult, Ledger, OutOfTimeError
from slurmtrain.preflight.links import between
from slurmtrain.preflight.listing import made_at
from slurmtrain.preflight.nics import nics
from slurmtrain.preflight.phases import REMEDIES, domains, matmul, storage, transport
from slurmtrain.preflight.probing import Member, Order, Probes
from slurmtrain.preflight.request import Request
from slurmtrain.steps.launcher import is_about

START_S, START_TIMES = 30.0, 3.0
LOOK_S = 1.0
Phase = tuple[tuple[str, ...], Callable[[Ledger], None]]


def measure(  # noqa: PLR0917 doors first, as everywhere
    probes: Probes,
    nodes: Sequence[str],
    request: Request,
    baseline: Baseline,
    clock: Clock,
    say: Callable[[str], None],
    *,
    called: Callable[[], bool] = lambda: False,
    record: bool = False,
    words: Callable[[], str] = lambda: "",
) -> FullResult:
    """Measure these nodes, in this order. `say`: hears what is worth a note, not the findings; `called`: whether somebody wants this
    process for something else: nothing is concluded then; `record`: groups of all sizes are measured, for a baseline; `words`: the
    launcher's so far.
    """
    ledger = Ledger(probes, nodes, request, baseline, clock, say, called=called, record=record)
    try:
        _start(ledger, words)
        for names, phase in _phases(request):
            _carry_out(ledger, names, phase)
    except CalledAwayError:
        return ledger.result(interrupted=True)
    return ledger.result()


def _phases(request: Request) -> Iterator[Phase]:
    """Those that are wanted, with the checks that they are for."""
    all_made = made_at(request)

    def made(*names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in all_made)

    if names := made("matmul", "matmul-result"):
        yield names, lambda ledger: matmul(ledger, rates="matmul" in names, results="matmul-result" in names)
    if made("domain-reduce"):
        yield ("domain-reduce",), domains
    if links := made("world-reduce", "pair"):
        yield links, lambda ledger: between(ledger, world="world-reduce" in links, pairs="pair" in links)
    if made("nic-rate"):
        yield ("nic-rate",), nics
    if made("storage-rate"):
        yield ("storage-rate",), storage
    if made("transport"):
        yield ("transport",), transport


def _carry_out(ledger: Ledger, names: Sequence[str], phase: Callable[[Ledger], None]) -> None:
    """A phase; where the time is over before its end, all that are left are unknown."""
    try:
        phase(ledger)
    except OutOfTimeError:
        said = f"not measured in the {ledger.request.site.preflight.full_s} s of preflight.full_s"
        for node in ledger.fit:
            ledger.blame(node, names[0], said, "raise preflight.full_s of the site, or leave checks out by preflight.skip", grade="unknown")


def _start(ledger: Ledger, words: Callable[[], str]) -> None:
    """Wait for the probes; nodes where one of them is missing are out, with the launcher's last word on them."""
    expected = ledger.members()
    began, limit = ledger.clock.monotonic(), min(ledger.request.site.timeouts.node_check_timeout_s, ledger.left_s)
    there: tuple[Member, ...] = ()
    while len(there) < len(expected) and (waited := ledger.clock.monotonic() - began) < limit:
        ledger.check_time()
        half_before = 2 * len(there) >= len(expected)
        there = ledger.probes.wait(expected, min(LOOK_S, limit - waited))
        if not half_before and 2 * len(there) >= len(expected):
            limit = min(limit, START_TIMES * (ledger.clock.monotonic() - began) + START_S)
    missing = [member for member in expected if member not in there]
    why = ledger.probes.each(missing, Order("matmul"), LOOK_S) if missing else {}
    waited = ledger.clock.monotonic() - began
    for member in missing:
        told = next((line.strip() for line in reversed(words().splitlines()) if is_about(line, member[0])), "")
        said = f"no probe after {waited:.0f} s: {told or why[member].said or 'it has not reported'}"
        ledger.blame(member[0], "probe", said, REMEDIES["probe"], grade="unknown", item=ledger.item(member))
