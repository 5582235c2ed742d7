"""ib_write_bw between namesakes of two nodes, in each direction: the one rate that is held to its nominal, by 80 %.

Every node is measured with two partners (three where one sits out), so that a slow NIC can be told from a slow partner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from slurmtrain.preflight.ledger import Ledger
from slurmtrain.preflight.pairs import blame_pairs
from slurmtrain.preflight.phases import REMEDIES
from slurmtrain.preflight.probing import Member, Order, Reply
from slurmtrain.preflight.rates import GPU, NIC_SHARE
from slurmtrain.preflight.tournament import Pair, Round, bad_nodes, rounds
from slurmtrain.preflight.trials import Bad, whole

PARTNERS = 2
NIC_S, START_S = 15.0, 30.0
"""What one NIC takes in both directions, and everything else."""
FIGURE = ".write_gbps"
INSTALL = "install perftest on the nodes, or leave the check out by preflight.skip"


def nics(ledger: Ledger) -> None:
    """Raises CalledAwayError, OutOfTimeError."""
    if len(ledger.fit) < 2:
        return
    tested: list[Pair] = []
    bad: dict[Pair, Bad] = {}
    for one in islice(rounds(ledger.fit), PARTNERS + len(ledger.fit) % 2):
        bad |= _steadily(ledger, one)
        tested += one
    for node in bad_nodes(tested, list(bad), least=2):
        said = next(own.said for pair, own in bad.items() if node in pair)
        ledger.blame(node, "nic-rate", said, REMEDIES["nic-rate"])
    blame_pairs(ledger, "nic-rate", bad)


def _steadily(ledger: Ledger, pairs: Round) -> dict[Pair, Bad]:
    """Pairs of a round that are bad in each of the tries."""
    suspects = _once(ledger, pairs)
    for _ in range(GPU.tries - 1):
        if not suspects:
            break
        again = _once(ledger, tuple(suspects))
        suspects = {pair: again[pair] for pair in suspects if pair in again}
    return suspects


def _once(ledger: Ledger, pairs: Iterable[Pair]) -> dict[Pair, Bad]:
    fabric = ledger.request.site.fabric
    groups = whole(ledger, {pair: tuple((node, 0) for node in pair) for pair in pairs})
    replies = ledger.ask(groups, Order("nic"), "nic-rate", limit_s=START_S + NIC_S * max(1, fabric.nics_per_node))
    found: dict[Pair, Bad] = {}
    for pair in whole(ledger, groups):
        if said := _said(ledger, replies[pair], fabric.nic_gbps):
            found[pair] = Bad(said, failed=True, tries=1)
    return found


def _said(ledger: Ledger, replies: Mapping[Member, Reply], nominal: float) -> str:
    """What is wrong with a pair; empty: nothing. What was skipped is a warning: there is no rate, and no reason to stay out."""
    words = []
    for (node, _), reply in replies.items():
        if skipped := reply.words.get("skipped"):
            ledger.blame(node, "nic-rate", skipped, INSTALL, grade="warn")
            continue
        other = next(one for one, _ in replies if one != node)
        words += [] if reply.ok else [reply.said]
        for name, value in reply.figures.items():
            if name.endswith(FIGURE):
                ledger.figure(node, name, value)
                if value < NIC_SHARE * nominal:
                    words.append(f"{name.removesuffix(FIGURE)} from {node} to {other}: {value:.0f} of {nominal} Gbit/s")
    return "; ".join(words[:2])
