"""The tournament of pairs, within preflight.pairs_s, and who is left out for a bad pair.

| a pair | is |
|---|---|
| of a node all of whose pairs are bad, as many as a slow rate must be slow | not looked at again: the node is bad, each partner was a try |
| slow, or has failed | measured again with its round, and with rounds of others as many; each such try is judged by itself (trials.py) |
| suspected when the time is over | told as a warning |
| not measured at all for want of time | told as untested |
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurmtrain.preflight.ledger import Ledger
from slurmtrain.preflight.phases import CPU_PAIR_BYTES, CPU_REPEATS, REMEDIES, read_pair
from slurmtrain.preflight.probing import Order
from slurmtrain.preflight.rates import LEAST_PEERS, Kind, Metric, rule_of
from slurmtrain.preflight.tournament import Pair, Round, bad_nodes, left_out, schedule
from slurmtrain.preflight.trials import Asked, Bad, Measure, ask_once, bad_of, keep, tell_unjudged
from slurmtrain.units import counted

FIRST_SHARE = 0.6
"""Of the time, after which no new round is begun where a pair is suspected: the rest is for measuring such pairs again."""
ROUND_S = 20.0
"""How long one round may take."""
Cell = tuple[Pair, int]
"""A pair, and the rail."""


@dataclass
class _Seen:
    """What all rounds have shown so far."""

    rates: dict[tuple[Cell, Metric], tuple[Kind, float]] = field(default_factory=dict)
    failed: dict[Cell, Bad] = field(default_factory=dict)

    def add(self, asked: Asked[Cell]) -> None:
        """The newest word on a pair counts."""
        again = {cell for cell, _ in asked.rates} | set(asked.failed)
        self.failed = {**{cell: one for cell, one in self.failed.items() if cell not in again}, **asked.failed}
        self.rates = {**{key: one for key, one in self.rates.items() if key[0] not in again}, **asked.rates}

    @property
    def tested(self) -> list[Pair]:
        return list(dict.fromkeys(pair for pair, _ in (*(cell for cell, _ in self.rates), *self.failed)))

    def suspects(self, ledger: Ledger) -> dict[Pair, Bad]:
        """Pairs that are bad by what is known now, each against all others."""
        found: dict[Pair, Bad] = {}
        for (pair, rail), one in bad_of(ledger, Asked(self.rates, self.failed, {})).items():
            found.setdefault(pair, of_rail(ledger, rail, one))
        return found


def of_rail(ledger: Ledger, rail: int, bad: Bad) -> Bad:
    """Names the rail where there are several."""
    return replace(bad, said=f"{ledger.item(('', rail))}: {bad.said}") if ledger.tasks > 1 else bad


def tournament(ledger: Ledger, first: Collection[Pair], known: Collection[Pair], *, others: bool) -> dict[Pair, Bad]:
    """The bad pairs among nodes that are fit; nodes all of whose pairs are bad are out, and theirs are not among them.

    `first`: tested before all others, or alone (not `others`); `known`: bad already, not tested. Raises CalledAwayError, OutOfTimeError.
    """
    pairs_s = ledger.request.site.preflight.pairs_s
    began, seen = ledger.clock.monotonic(), _Seen()
    plan = _plan(ledger.fit, first, known, others=others)
    done = _first_pass(ledger, plan, seen, pairs_s)
    tell_unjudged(ledger, Asked(seen.rates, seen.failed, {}))
    suspects = seen.suspects(ledger)
    tries = rule_of("pair_gb_s", on_gpus=ledger.request.on_gpus).tries
    _blame_nodes(ledger, seen.tested, suspects, least=tries)
    suspects = _again(ledger, plan[:done], _of_fit(ledger, suspects), began + pairs_s)
    _blame_nodes(ledger, [pair for pair in seen.tested if set(pair) <= set(ledger.fit)], suspects, least=2)
    ledger.untested += [pair for one in plan[done:] for pair in one if set(pair) <= set(ledger.fit)]
    return _of_fit(ledger, suspects)


def _plan(nodes: Sequence[str], first: Collection[Pair], known: Collection[Pair], *, others: bool) -> list[Round]:
    skip, wanted = {frozenset(pair) for pair in known}, {frozenset(pair) for pair in first}
    plan = schedule(nodes, first)
    kept = (tuple(p for p in one if frozenset(p) not in skip and (others or frozenset(p) in wanted)) for one in plan)
    return [one for one in kept if one]


def _first_pass(ledger: Ledger, plan: Sequence[Round], seen: _Seen, pairs_s: float) -> int:
    """How many rounds there was time for."""
    began, doubt = ledger.clock.monotonic(), False
    for done, one in enumerate(plan):
        if ledger.clock.monotonic() - began >= pairs_s * (FIRST_SHARE if doubt else 1):
            return done
        asked = _round(ledger, one)
        bad = bad_of(ledger, asked)
        keep(ledger, _cells(ledger, one), asked, bad)
        doubt = doubt or bool(bad)
        seen.add(asked)
    return len(plan)


def _round(ledger: Ledger, pairs: Round) -> Asked[Cell]:
    cells = _cells(ledger, pairs)
    order = Order("pair") if ledger.request.on_gpus else Order("pair", sizes=(CPU_PAIR_BYTES,), repeats=CPU_REPEATS)
    return ask_once(ledger, cells, Measure("pair", order, read_pair, limit_s=min(ROUND_S, ledger.order_s)))


def _cells(ledger: Ledger, pairs: Round) -> dict[Cell, tuple[tuple[str, int], ...]]:
    fit = set(ledger.fit)
    return {(pair, rail): tuple((node, rail) for node in pair) for pair in pairs if fit.issuperset(pair) for rail in range(ledger.tasks)}


def _try(plan: Sequence[Round], suspects: Collection[Pair]) -> Iterator[Round]:
    """The rounds of suspects, each followed by one of others, until others are the most: what is bad must not be the rule."""
    those = [one for one in plan if not set(one).isdisjoint(suspects)]
    others = iter([one for one in plan if set(one).isdisjoint(suspects)])
    missing = LEAST_PEERS + 1 + 2 * len(suspects) - sum(len(one) for one in those)
    for one in those:
        yield one
        if missing > 0 and (more := next(others, ())):
            missing -= len(more)
            yield more
    while missing > 0 and (more := next(others, ())):
        missing -= len(more)
        yield more


def _again(ledger: Ledger, plan: Sequence[Round], suspects: dict[Pair, Bad], until: float) -> dict[Pair, Bad]:
    """Suspects that are bad in as many tries as it takes; what there is no time for is told, and let go."""
    count, certain = 1, dict[Pair, Bad]()
    while True:
        certain |= {pair: one for pair, one in suspects.items() if one.tries <= count}
        suspects = {pair: one for pair, one in suspects.items() if pair not in certain}
        if not suspects or ledger.clock.monotonic() >= until:
            break
        fresh = _Seen()
        for pairs in _try(plan, suspects):
            fresh.add(_round(ledger, pairs))
        now = fresh.suspects(ledger)
        suspects = {pair: now[pair] for pair in _of_fit(ledger, suspects) if pair in now}
        count += 1
    for (node, peer), one in suspects.items():
        said = f"with {peer}: {one.said}; no time to measure it again"
        ledger.blame(node, "pair", said, REMEDIES["pair"], grade="warn", peer=peer)
    return certain


def _of_fit(ledger: Ledger, pairs: Mapping[Pair, Bad]) -> dict[Pair, Bad]:
    fit = set(ledger.fit)
    return {pair: one for pair, one in pairs.items() if fit.issuperset(pair)}


def _blame_nodes(ledger: Ledger, tested: Sequence[Pair], bad: Mapping[Pair, Bad], *, least: int) -> None:
    """Nodes all of whose pairs are bad."""
    for node in bad_nodes(tested, list(bad), least):
        own = {peer: one for pair, one in bad.items() for peer in pair if node in pair and peer != node}
        peer, first = next(iter(own.items()))
        said = f"bad with all {counted(len(own), 'partner')}; with {peer}: {first.said}"
        ledger.blame(node, "pair", said, REMEDIES["world-reduce"])


def blame_pairs(ledger: Ledger, check: str, bad: Mapping[Pair, Bad]) -> None:
    """Of each bad pair one node is out, and it is said why that one."""
    own = {frozenset(pair): one for pair, one in _of_fit(ledger, bad).items()}
    for node, peers in left_out([pair for pair in bad if frozenset(pair) in own], ledger.fit).items():
        why = "it has more bad pairs" if len(peers) > 1 else "it is the later of the two"
        words = f"with {', '.join(peers)}: {own[frozenset((node, peers[0]))].said}; {why}, and is left out"
        ledger.blame(node, check, words, REMEDIES[check], peer=peers[0])
