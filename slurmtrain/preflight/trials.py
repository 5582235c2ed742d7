"""One order to groups of members at the same time, and which of the groups are bad: again and again, until that is certain.

| a group | is bad |
|---|---|
| has failed by running into its time limit | at once: noise does not take that long |
| has computed a wrong sum | at once: no load explains that |
| has failed otherwise | where it fails once more |
| is slow | where it is slow in each of the tries of its kind's rule (rates.py) |
| has lost a member | not judged: the member's node is out |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from slurmtrain.preflight.ledger import Ledger
from slurmtrain.preflight.probing import Member, Order, Reply
from slurmtrain.preflight.rates import Kind, Metric, judged, slow

FAILED_TRIES = 2
WRONG = "wrong sum"
LATE_SHARE = 0.5
"""Of an order's time limit, from which on a failure is taken for one of time."""

K = TypeVar("K")
Groups = Mapping[K, tuple[Member, ...]]
Rates = Mapping[Metric, tuple[int, float]]
"""Metric to size and value."""
Read = Callable[[Mapping[Member, Reply]], Rates]


@dataclass(frozen=True)
class Bad:
    """Why a group is bad. `failed`: it did not do what it was told, else it was slow; `tries`: how often it must be, to be believed."""

    said: str
    failed: bool
    tries: int


@dataclass(frozen=True)
class Measure:
    """What is asked, and how the replies of one group are read. `members`: of its kind, where that is not the group's size."""

    check: str
    order: Order
    read: Read
    members: int = 0
    limit_s: float = 0.0


@dataclass(frozen=True)
class Asked(Generic[K]):
    """What came of an order, of groups that have lost nobody: rates by group and metric, and those that failed; and all replies."""

    rates: Mapping[tuple[K, Metric], tuple[Kind, float]]
    failed: Mapping[K, Bad]
    replies: Mapping[K, Mapping[Member, Reply]]


def trial(ledger: Ledger, groups: Groups[K], measure: Measure) -> dict[K, Bad]:
    """Those of the groups that are bad; those that have lost a member are not among them. Raises CalledAwayError, OutOfTimeError."""
    suspects: dict[K, Bad] = {}
    settled: dict[K, Bad] = {}
    count = 0
    while count == 0 or any(count < one.tries for one in suspects.values()):
        asked = ask_once(ledger, {key: group for key, group in whole(ledger, groups).items() if key not in settled}, measure)
        now = bad_of(ledger, asked)
        if count == 0:
            keep(ledger, groups, asked, now)
            tell_unjudged(ledger, asked)
        suspects = now if count == 0 else {key: now[key] for key in suspects if key in now}
        settled |= {key: one for key, one in suspects.items() if one.tries == 1}
        suspects = {key: one for key, one in suspects.items() if key not in settled}
        count += 1
    there = whole(ledger, groups)
    return {key: one for key, one in {**settled, **suspects}.items() if key in there}


def whole(ledger: Ledger, groups: Groups[K]) -> dict[K, tuple[Member, ...]]:
    """Groups all of whose nodes are fit."""
    fit = set(ledger.fit)
    return {key: group for key, group in groups.items() if all(node in fit for node, _ in group)}


def ask_once(ledger: Ledger, groups: Groups[K], measure: Measure) -> Asked[K]:
    """The order, once, and what is read from the replies. Raises CalledAwayError, OutOfTimeError."""
    limit_s = measure.limit_s or ledger.order_s
    replies = ledger.ask(groups, measure.order, measure.check, limit_s=limit_s)
    tries = 1 if ledger.slowest_s >= LATE_SHARE * limit_s else FAILED_TRIES
    rates: dict[tuple[K, Metric], tuple[Kind, float]] = {}
    failed: dict[K, Bad] = {}
    for key, group in whole(ledger, groups).items():
        own = replies[key]
        if why := [reply.said or "it failed" for reply in own.values() if not reply.ok]:
            wrong = next((said for said in why if WRONG in said), "")
            failed[key] = Bad(wrong or why[0], failed=True, tries=1 if wrong else tries)
        else:
            device = ledger.device(group)
            for metric, (size, value) in measure.read(own).items():
                rates[key, metric] = (Kind(metric, size, measure.members or len(group), device), value)
    return Asked(rates, failed, replies)


def bad_of(ledger: Ledger, asked: Asked[K]) -> dict[K, Bad]:
    """Of one try. Metrics of one order have one rule."""
    found = dict(asked.failed)
    if asked.rates:
        rule = ledger.rule(next(iter(asked.rates.values()))[0])
        for (key, _), one in slow(asked.rates, rule.share, ledger.healthy).items():
            found.setdefault(key, Bad(str(one), failed=False, tries=rule.tries))
    return found


def keep(ledger: Ledger, groups: Groups[K], asked: Asked[K], bad: Mapping[K, Bad]) -> None:
    """Write down what was measured; what is not bad is what healthy nodes reach."""
    for (key, _), (kind, value) in asked.rates.items():
        ledger.keep(kind, {node for node, _ in groups[key]}, value, healthy=key not in bad)


def tell_unjudged(ledger: Ledger, asked: Asked[K]) -> None:
    """Say so where there is nothing to compare rates with."""
    if asked.rates and not judged(asked.rates, ledger.healthy):
        kinds = sorted({kind.metric for kind, _ in asked.rates.values()})
        ledger.note(f"{', '.join(kinds)}: too few to compare, and no baseline: told, not judged")
