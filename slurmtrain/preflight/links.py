"""The links between nodes: all-reduce over all of them, the search for what makes it fail, and the tournament of pairs.

On GPUs the members of one local rank on all nodes are a rail: all rails are measured at the same time, and a group of nodes is as bad as
the worst of its rails. On CPUs there is one member per node.

| after search and tournament | follows |
|---|---|
| a node is bad | it is out |
| a pair is bad | one of the two is out, and that is said (tournament.py) |
| anybody is out, or a group failed that nothing explains | all that are left once more, together |
| they fail together, and no node and no pair of them does | all are out: nobody knows what to do without |
| they are slow together, and so on | a warning: it is the network between them |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurmtrain.preflight.ledger import Ledger
from slurmtrain.preflight.pairs import blame_pairs, of_rail, tournament
from slurmtrain.preflight.phases import REMEDIES, read_reduce
from slurmtrain.preflight.probing import Member, Order
from slurmtrain.preflight.searching import Found, Group, Heard, search
from slurmtrain.preflight.trials import Bad, Measure, trial
from slurmtrain.units import counted

MOST_SEARCHES = 3
_WORLD = Measure("world-reduce", Order("reduce"), read_reduce("world_reduce_gb_s"))
_NOTHING = Found((), (), (), (), (), (), 0)
_UNSAID = Bad("they fail together", failed=True, tries=1)


def between(ledger: Ledger, *, world: bool, pairs: bool) -> None:
    """All of it. Raises CalledAwayError, OutOfTimeError."""
    for number in range(MOST_SEARCHES):
        before = ledger.fit
        found, why = searched(ledger) if world else (_NOTHING, {})
        clean = not (found.bad or found.pairs or found.suspected or found.undecided)
        _blame_nodes(ledger, found, why)
        searched_fit = ledger.fit
        bad = {pair: why.get(frozenset(pair), _UNSAID) for pair in found.pairs}
        if pairs and (number == 0 or found.suspected):
            bad |= tournament(ledger, found.suspected, bad, others=number == 0)
        blame_pairs(ledger, "pair", bad)
        if clean and ledger.fit == searched_fit:
            return
        if ledger.fit == before:
            if found.suspected:
                _unexplained(ledger, why)
            return


def searched(ledger: Ledger) -> tuple[Found, dict[frozenset[str], Bad]]:
    """What the search finds, and why each group that failed did."""
    why: dict[frozenset[str], Bad] = {}
    if len(ledger.fit) < 2:
        return _NOTHING, why
    machine = search(ledger.fit)
    groups = next(machine)
    while True:
        before = set(ledger.fit)
        bad = trial(ledger, _railed(ledger, groups), _WORLD)
        for (index, rail), one in bad.items():
            why.setdefault(frozenset(groups[index]), of_rail(ledger, rail, one))
        failed = {index for index, _ in bad}
        gone = before - set(ledger.fit)
        try:
            groups = machine.send(Heard(tuple(index not in failed for index in range(len(groups))), frozenset(gone)))
        except StopIteration as end:
            found: Found = end.value
            break
    if ledger.record and not why:
        _ladder(ledger)
    return found, why


def _railed(ledger: Ledger, groups: Iterable[Group]) -> dict[tuple[int, int], tuple[Member, ...]]:
    return {(index, rail): tuple((node, rail) for node in group) for index, group in enumerate(groups) for rail in range(ledger.tasks)}


def _ladder(ledger: Ledger) -> None:
    """Groups of a half, a quarter, ... of the nodes: the sizes that a search meets, for the baseline."""
    size = len(ledger.fit) // 2
    while size >= 2:
        nodes = ledger.fit
        trial(ledger, _railed(ledger, [nodes[at : at + size] for at in range(0, len(nodes) - size + 1, size)]), _WORLD)
        size //= 2


def _blame_nodes(ledger: Ledger, found: Found, why: Mapping[frozenset[str], Bad]) -> None:
    for node in found.bad:
        said = [f"with {other}: {one.said}" for group, one in why.items() if node in group and len(group) == 2 for other in group - {node}]
        ledger.blame(node, "world-reduce", "; ".join(said[:2]), REMEDIES["world-reduce"])
    met = {node for pair in found.pairs for node in pair}
    for node in found.undecided:
        if node not in met:
            ledger.blame(node, "world-reduce", "there was no partner to test it with", REMEDIES["world-reduce"], grade="unknown")


def _unexplained(ledger: Ledger, why: Mapping[frozenset[str], Bad]) -> None:
    """A group fails that no node and no pair explains."""
    group, one = max(why.items(), key=lambda item: len(item[0]))
    said = f"all-reduce over {counted(len(group), 'node')}: {one.said}; no node and no pair of them does so by itself"
    if not one.failed:
        ledger.note(said)
        return
    for node in ledger.fit:
        ledger.blame(node, "world-reduce", said, "look at the switches between them; try fewer nodes, or others")
