"""Order and choice of nodes, and the check of the NVLink domains that the plan was built on. Pure.

A domain's key is NVML's fabric UUID and clique where the site's domains are nodes or blocks and NVML is there, else the block that
Slurm names where the site says "block", else the node; pairs are counted within the node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from slurmtrain.config.plan import Plan
from slurmtrain.errors import PlacementError
from slurmtrain.fabric.discovery import DomainAnswer
from slurmtrain.fabric.layout import domain_words
from slurmtrain.fabric.placement import groups
from slurmtrain.slurm.types import NodePlace

_SHOWN = 4


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key by which n2 comes before n10.

    >>> sorted(["n10", "n2", "n1-b"], key=natural)
    ['n1-b', 'n2', 'n10']
    """
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.findall(r"\d+|\D+", name))


def order_nodes(nodes: Iterable[str], places: Sequence[NodePlace]) -> list[str]:
    """Nodes by leaf, then block, then natural name; nodes of which nothing is known come last."""
    return [node for group in _neighbours(nodes, places) for node in group]


def segment_nodes(plan: Plan) -> int:
    """Number of consecutive nodes that must lie in one NVLink domain: what a TP group spans (Slurm's --segment)."""
    spans = ((group[-1] // plan.gpus_per_node) - (group[0] // plan.gpus_per_node) + 1 for group in groups(plan, "tp"))
    return max(spans)


def in_segments(nodes: Iterable[str], places: Sequence[NodePlace], segment: int) -> int:
    """How many of these nodes lie in whole segments of neighbours: as many as a world can have whose TP groups span `segment` nodes.

    >>> blocks = [NodePlace(f"n{i}", block=f"b{(i + 1) // 2}") for i in range(1, 7)]
    >>> in_segments(["n1", "n2", "n3", "n5", "n6"], blocks, 2), in_segments(["n1", "n3", "n5"], blocks, 2), in_segments(["n1"], [], 1)
    (4, 0, 1)
    """
    return sum(len(group) // segment * segment for group in _neighbours(nodes, places))


def choose_nodes(nodes: Iterable[str], count: int, places: Sequence[NodePlace], *, segment: int = 1) -> list[str]:
    """`count` of these nodes, in the order of the world; the others are spares.

    Neighbours (one leaf or block) are taken together, the largest groups first, in whole segments of `segment` nodes
    (`segment_nodes`); single nodes fill up what is left, and come last in the world. Raises PlacementError for too few nodes.
    """
    known = _neighbours(nodes, places)
    total = sum(len(group) for group in known)
    if total < count:
        raise PlacementError(f"the world needs {count} nodes, {total} are there ({', '.join(order_nodes(nodes, places)) or 'none'})")
    whole: list[str] = []
    for group in sorted(known, key=len, reverse=True):
        take = min(len(group), count - len(whole)) // segment * segment
        whole += group[:take]
    taken = set(whole)
    rest = islice((node for group in known for node in group if node not in taken), count - len(whole))
    return [*order_nodes(whole, places), *rest]


def domain_of(plan: Plan, node: str, local_rank: int, found: DomainAnswer) -> str:
    """Key of the NVLink domain of a rank, by what the rank found; equal keys are one domain."""
    if plan.nvlink_domain == "pairs":
        return f"{node}, pair {local_rank // 2}"
    if found.fabric:
        return f"fabric {found.fabric}"
    return f"block {found.block}" if plan.nvlink_domain == "block" and found.block else f"node {node}"


def check_domains(plan: Plan, answers: Sequence[DomainAnswer]) -> None:
    """Compare the promise with what the ranks found (`answers[r]` of world rank r).

    Raises PlacementError naming nodes and ranks of the first TP group that is not inside one NVLink domain.
    """
    assert len(answers) == plan.world, f"{len(answers)} answers of {plan.world} ranks"
    keys = [domain_of(plan, a.node, a.local_rank, a) for a in answers]
    torn = [group for group in groups(plan, "tp") if len({keys[rank] for rank in group}) > 1]
    if not torn:
        return
    first = torn[0]
    by_domain: dict[str, list[int]] = {}
    for rank in first:
        by_domain.setdefault(keys[rank], []).append(rank)
    shown = [f"{key}: {_ranks(ranks)} on {_names([answers[r].node for r in ranks])}" for key, ranks in by_domain.items()]
    more = f"; and {len(torn) - 1} more groups" if len(torn) > 1 else ""
    raise PlacementError(
        f"a TP group of {plan.tp} leaves its NVLink domain: {'; '.join(shown[:_SHOWN])}{more}. The site promises {domain_words(plan)}: "
        f"lower parallel.tp, ask for nodes of one domain, or correct node.nvlink_domain of the site"
    )


def _neighbours(nodes: Iterable[str], places: Sequence[NodePlace]) -> list[list[str]]:
    """Nodes grouped by (leaf, block), groups and their nodes in natural order, unknown places last."""
    place = {p.node: (p.leaf, p.block) for p in places}
    grouped: dict[tuple[str, str], list[str]] = {}
    for node in sorted(nodes, key=natural):
        grouped.setdefault(place.get(node, ("", "")), []).append(node)
    return [grouped[key] for key in sorted(grouped, key=lambda k: (k == ("", ""), natural(k[0]), natural(k[1])))]


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    close = ranks[-1] - ranks[0] == len(ranks) - 1
    return f"ranks {ranks[0]}-{ranks[-1]}" if close else "ranks " + ", ".join(str(r) for r in ranks)


def _names(names: Sequence[str]) -> str:
    unique = list(Counter(names))
    return ", ".join(unique[:_SHOWN]) + (f" and {len(unique) - _SHOWN} more" if len(unique) > _SHOWN else "")
