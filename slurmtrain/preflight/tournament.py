"""Round robin: every pair of nodes once, as many at the same time as there are disjoint ones. Pure.

The circle method: one node stands still, the others move on by one place a round. n nodes: n-1 rounds of n/2 pairs; n odd: n rounds, one
sits out in each.

| of the pairs tested | what is bad |
|---|---|
| all of a node's, two or more | the node |
| some of it | the pairs: one node of each is left out, that with more bad pairs, else the later in order |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

Pair = tuple[str, str]
Round = tuple[Pair, ...]


def rounds(nodes: Sequence[str]) -> Iterator[Round]:
    """All pairs, each once, its nodes in the order of `nodes`.

    >>> list(rounds(["a", "b", "c", "d"]))
    [(('a', 'd'), ('b', 'c')), (('a', 'c'), ('b', 'd')), (('a', 'b'), ('c', 'd'))]
    """
    count = len(nodes) + len(nodes) % 2
    moving = list(range(1, count))
    for _ in range(count - 1):
        circle = [0, *moving]
        pairs = (sorted((circle[i], circle[-1 - i])) for i in range(count // 2))
        yield tuple(sorted((nodes[low], nodes[high]) for low, high in pairs if high < len(nodes)))
        moving = [moving[-1], *moving[:-1]]


def schedule(nodes: Sequence[str], first: Collection[Pair] = ()) -> list[Round]:
    """All pairs in rounds, those of `first` before all others.

    >>> schedule(["a", "b", "c", "d"], [("b", "c"), ("c", "d")])
    [(('b', 'c'),), (('c', 'd'),), (('a', 'd'),), (('a', 'c'), ('b', 'd')), (('a', 'b'),)]
    """
    wanted = {frozenset(pair) for pair in first}
    every = list(rounds(nodes))
    early = [tuple(pair for pair in one if frozenset(pair) in wanted) for one in every] if wanted else []
    late = [tuple(pair for pair in one if frozenset(pair) not in wanted) for one in every]
    return [one for one in (*early, *late) if one]


def bad_nodes(tested: Iterable[Pair], bad: Collection[Pair], least: int = 2) -> list[str]:
    """Nodes all of whose pairs are bad, where that are `least` or more; of pairs with such a node nothing else is to be concluded.

    >>> bad_nodes([("a", "b"), ("a", "c"), ("b", "c")], [("a", "b"), ("a", "c")])
    ['a']
    """
    met = Counter(node for pair in tested for node in pair)
    failed = Counter(node for pair in bad for node in pair)
    return [node for node, count in met.items() if count >= least and failed[node] == count]


def left_out(pairs: Collection[Pair], nodes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Nodes by whose absence no bad pair is left, each with those that it is bad with; greedy, as the table says.

    >>> left_out([("a", "b"), ("b", "c"), ("d", "e")], "abcde")
    {'b': ('a', 'c'), 'e': ('d',)}
    """
    place = {node: index for index, node in enumerate(nodes)}
    left, out = list(pairs), dict[str, tuple[str, ...]]()
    while left:
        counts = Counter(node for pair in left for node in pair)
        node = max(counts, key=lambda one: (counts[one], place[one]))
        peers = sorted((other for pair in left if node in pair for other in pair if other != node), key=place.__getitem__)
        out[node] = tuple(peers)
        left = [pair for pair in left if node not in pair]
    return out
