"""Which nodes make a collective fail: groups are tested, all of a round at the same time, until every node is told apart. Pure.

A group fails where a bad node, or both nodes of a bad pair, are in it. A fault between nodes does not show within one: a single node is
never tested alone, but with a partner that is known to be good, one that was in a group that passed.

| what is known | next round |
|---|---|
| nothing | all of them |
| no node is good yet | both halves of every group that failed; groups of two and three: pairs across them, until one passes |
| some nodes are good | each suspect with a good partner of its own, as many as there are; all other good ones together |
| a node of a group is gone: it hung or died | it is bad; the others of its group once more without it |

| a node | is |
|---|---|
| that was in a group that passed | good |
| that failed with two good partners, or groups of such that passed | bad (one bad pair of a good node does not look like it) |
| else, when there is nothing left to test | undecided: of two nodes that fail together nobody can tell which it is |

Of n nodes with one fault the search takes at most ceil(log2 n) + 1 rounds, with k faults at most k times as many. (Three nodes and one bad
take four: only one pair of them can be tested at a time, and node and pair cannot be told apart by fewer.)

What is left for the tournament: `suspected`, pairs within a group that failed where no node or pair found so far explains it, as where
both halves of it pass; `unproven`, all other pairs that never were in one group that passed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from slurmtrain.preflight.tournament import Pair, rounds

Group = tuple[str, ...]
_SPLIT_FROM = 4
"""Nodes of a group that is halved: smaller ones have a half of one node."""
_WITNESSES = 2


@dataclass(frozen=True)
class Heard:
    """What came of a round: whether each group passed, and nodes that are gone."""

    passed: tuple[bool, ...]
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Found:
    """`bad`, `pairs`: what makes groups fail; `gone`: of the nodes that hung or died; `rounds`: how many were tested."""

    bad: tuple[str, ...]
    pairs: tuple[Pair, ...]
    gone: tuple[str, ...]
    undecided: tuple[str, ...]
    suspected: tuple[Pair, ...]
    unproven: tuple[Pair, ...]
    rounds: int


def search(nodes: Sequence[str]) -> Generator[list[Group], Heard, Found]:
    """Yields rounds of disjoint groups, is sent what came of each, and returns what was found."""
    known, count = _Known(tuple(nodes)), 0
    groups = [known.nodes] if len(known.nodes) > 1 else []
    while groups:
        known.learn(groups, (yield groups))
        count += 1
        groups = known.next_round()
    return known.found(count)


class _Known:
    """What the rounds so far have shown."""

    def __init__(self, nodes: Group) -> None:
        self.nodes = nodes
        self._good, self._bad, self._gone = set[str](), set[str](), set[str]()
        self._met: dict[str, set[str]] = {node: set() for node in nodes}
        self._failed: list[frozenset[str]] = []
        self._failed_with: dict[str, set[str]] = {node: set() for node in nodes}
        self._whole: list[Group] = []
        self._again: list[Group] = []

    def learn(self, groups: Sequence[Group], heard: Heard) -> None:
        self._gone |= heard.gone
        self._good -= heard.gone
        self._again = []
        for group, passed in zip(groups, heard.passed, strict=True):
            if heard.gone & set(group):
                self._again += [rest] if len(rest := tuple(n for n in group if n not in heard.gone)) > 1 else []
            elif passed:
                self._pass(group)
            else:
                self._fail(group)
        self._name()

    def _pass(self, group: Group) -> None:
        self._good |= set(group)
        for node in group:
            self._met[node] |= set(group)

    def _fail(self, group: Group) -> None:
        self._failed.append(frozenset(group))
        if len(group) == 2:
            for node, other in (group, group[::-1]):
                self._failed_with[node].add(other)
        elif len(group) >= _SPLIT_FROM:
            self._whole.append(group)

    def _name(self) -> None:
        self._bad |= {node for node in self._suspects() if self._witnesses(node)}

    def _witnesses(self, node: str) -> bool:
        """Whether it failed twice with others that work together, and with other ones each time."""
        partners = self._failed_with[node] & self._good
        if len(partners) >= _WITNESSES:
            return True
        groups = (group - {node} for group in self._failed if node in group and len(group) > 2)
        return any(not others & partners and self._works(others) for others in groups) if partners else False

    def _works(self, nodes: frozenset[str]) -> bool:
        return nodes <= self._good and all(self._met[node] >= nodes for node in nodes)

    def _suspects(self) -> list[str]:
        settled = self._good | self._bad | self._gone
        return [node for node in self.nodes if node not in settled]

    def next_round(self) -> list[Group]:
        busy = {node for group in self._again for node in group}
        suspects = [node for node in self._suspects() if node not in busy]
        if not suspects:
            return self._again
        if self._good:
            return [*self._again, *self._with_partners(suspects, busy)]
        return [*self._again, *(self._halves(suspects) or self._untried(suspects))]

    def _with_partners(self, suspects: Iterable[str], busy: Iterable[str]) -> list[Group]:
        free = [node for node in self.nodes if node in self._good and node not in set(busy)]
        found: list[Group] = []
        for node in suspects:
            partner = next((one for one in free if one not in self._failed_with[node]), None)
            if partner is not None:
                free.remove(partner)
                found.append((node, partner))
        return [*found, tuple(free)] if found and len(free) > 1 else found

    def _halves(self, suspects: Iterable[str]) -> list[Group]:
        whole, self._whole = [group for group in self._whole if set(group) <= set(suspects)], []
        return [half for group in whole for half in (group[: len(group) // 2], group[len(group) // 2 :])]

    def _untried(self, suspects: Sequence[str]) -> list[Group]:
        """Pairs of nodes of which none is known to be good: the next disjoint ones that were not tested yet."""
        for pairs in rounds(suspects):
            if fresh := [pair for pair in pairs if pair[1] not in self._failed_with[pair[0]]]:
                return list(fresh)
        return []

    def found(self, count: int) -> Found:
        out = self._bad | self._gone
        pairs = [pair for pair in self._pairs(self.nodes, out) if pair[1] in self._failed_with[pair[0]]]
        suspected = self._suspected(pairs, out)
        unproven = [pair for pair in self._pairs(self.nodes, out) if not self._proven(pair)] if self._failed or self._gone else []
        first = {*pairs, *suspected}
        return Found(
            tuple(node for node in self.nodes if node in self._bad),
            tuple(pairs),
            tuple(node for node in self.nodes if node in self._gone),
            tuple(self._suspects()),
            tuple(suspected),
            tuple(pair for pair in unproven if pair not in first),
            count,
        )

    def _suspected(self, pairs: Sequence[Pair], out: set[str]) -> list[Pair]:
        unexplained = [group for group in self._failed if not group & out and not any(group.issuperset(pair) for pair in pairs)]
        found = (pair for group in unexplained for pair in self._pairs([n for n in self.nodes if n in group], out))
        return [pair for pair in dict.fromkeys(found) if not self._proven(pair)]

    def _pairs(self, nodes: Iterable[str], out: set[str]) -> Iterable[Pair]:
        return combinations([node for node in nodes if node not in out], 2)

    def _proven(self, pair: Pair) -> bool:
        return pair[1] in self._met[pair[0]]
