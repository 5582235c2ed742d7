"""The measurements of a full preflight that need no search: each names its bad nodes by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from slurmtrain.preflight.finding import Grade
from slurmtrain.preflight.ledger import Ledger
from slurmtrain.preflight.probing import Member, Order, Reply
from slurmtrain.preflight.rates import Metric
from slurmtrain.preflight.trials import Measure, Rates, Read, ask_once, trial, whole

REMEDIES: Mapping[str, str] = {
    "probe": "see probe-*.log beside the node's check: python, torch and the device must start there",
    "matmul": "look for a throttled clock, heat, or another process on it; drain the node",
    "matmul-result": "its arithmetic is wrong: drain the node, have the device replaced",
    "domain-reduce": "look at NVLink (`nvidia-smi nvlink -s`, -e) and the fabric manager; drain the node",
    "world-reduce": "look at its NICs, cables and switch ports (ibdiagnet, ethtool -S); drain the node",
    "pair": "look at the cables and switch ports between the two (ibdiagnet, iperf3)",
    "nic-rate": "look at the port's width, speed and error counters, and at its PCIe slot",
    "storage-rate": "look at the mount and the file system's servers from that node",
    "transport": "see NCCL_DEBUG=INFO there: is the plugin loaded, are the HCAs up, is NCCL_IB_HCA right?",
}
CPU_ROWS, CPU_PAIR_BYTES, CPU_REPEATS, CPU_BYTES = 2048, 1 << 26, 3, 1 << 24
"""On CPUs: a product and a message that take longer than a slice of the scheduler's; a file that a shared disk takes at once."""
_FAST = frozenset({"IB", "RoCE", "EFA"})
_BETWEEN_NODES = _FAST | {"GPUDirect"}
_EXPECTED: Mapping[str, tuple[str, ...]] = {"infiniband": ("IB",), "roce": ("RoCE",)}


def matmul(ledger: Ledger, *, rates: bool, results: bool) -> None:
    """The rate of each device, and whether devices of one model compute the same product."""
    products: dict[Member, set[str]] = {}

    def read(replies: Mapping[Member, Reply]) -> Rates:
        for member, reply in replies.items():
            products.setdefault(member, set()).add(reply.words.get("checksum", ""))
        figures = next(iter(replies.values())).figures
        return {"matmul_tflops": (int(figures.get("size", 0)), figures["tflops"])}

    order = Order("matmul") if ledger.request.on_gpus else Order("matmul", sizes=(CPU_ROWS,), repeats=CPU_REPEATS)
    measure = Measure("matmul", order, read, members=1)
    groups = {member: (member,) for member in ledger.members()}
    bad = trial(ledger, groups, measure) if rates else ask_once(ledger, groups, measure).failed
    for member, one in bad.items():
        ledger.blame(member[0], "matmul", one.said, REMEDIES["matmul"], item=ledger.item(member))
    if ledger.shared and ledger.baseline.rows:
        ledger.note("all nodes are one machine: the baseline does not count, devices and pairs are measured one after another")
    ledger.note(ledger.baseline.foreign(ledger.devices.values()))
    if results:
        _results(ledger, products)


def _results(ledger: Ledger, products: Mapping[Member, set[str]]) -> None:
    models: dict[str, dict[Member, set[str]]] = {}
    for member, found in products.items():
        models.setdefault(ledger.devices.get(member, ""), {})[member] = found
    for own in models.values():
        for member, (grade, said) in wrong_products(own).items():
            ledger.blame(member[0], "matmul-result", said, REMEDIES["matmul-result"], grade=grade, item=ledger.item(member))


def wrong_products(products: Mapping[Member, set[str]]) -> dict[Member, tuple[Grade, str]]:
    """Devices of one model whose product differs from that of most, or from its own a moment ago.

    >>> wrong_products({("n1", 0): {"7"}, ("n2", 0): {"7"}, ("n3", 0): {"8"}})
    {('n3', 0): ('fail', 'its product is another than that of 2 devices of its kind')}
    """
    counts = Counter(next(iter(own)) for own in products.values() if len(own) == 1)
    most, count = counts.most_common(1)[0] if counts else ("", 0)
    found: dict[Member, tuple[Grade, str]] = {}
    for member, own in products.items():
        if len(own) > 1:
            found[member] = ("fail", "the same product came out in two ways")
        elif len(counts) > 1 and 2 * count <= len(products):
            words = f"{len(counts)} different products on {len(products)} devices of its kind: nobody can tell which is right"
            found[member] = ("unknown", words)
        elif own != {most}:
            found[member] = ("fail", f"its product is another than that of {count} devices of its kind")
    return found


def domains(ledger: Ledger) -> None:
    """All-reduce within each NVLink domain, as far as it lies in one node; what links the nodes of a block is measured between nodes."""
    span = 2 if ledger.request.site.node.nvlink_domain == "pairs" else ledger.tasks
    groups = {
        (node, first): tuple((node, local) for local in range(first, min(first + span, ledger.tasks)))
        for node in ledger.fit
        for first in range(0, ledger.tasks, span)
    }
    several = {key: group for key, group in groups.items() if len(group) > 1}
    for (node, _), one in trial(ledger, several, Measure("domain-reduce", Order("reduce"), read_reduce("domain_reduce_gb_s"))).items():
        ledger.blame(node, "domain-reduce", one.said, REMEDIES["domain-reduce"])


def read_reduce(metric: Metric) -> Read:
    """The rate at the largest size, of the member that found it lowest."""

    def read(replies: Mapping[Member, Reply]) -> Rates:
        slowest = min((reply.figures for reply in replies.values()), key=lambda figures: figures["busbw_gb_s"])
        return {metric: (_largest(slowest), slowest["busbw_gb_s"])}

    return read


def read_pair(replies: Mapping[Member, Reply]) -> Rates:
    """The slower way of a pair."""
    ways = [reply.figures[name] for reply in replies.values() for name in ("send_gb_s", "receive_gb_s")]
    return {"pair_gb_s": (_largest(next(iter(replies.values())).figures), min(ways))}


def _largest(figures: Mapping[str, float]) -> int:
    """The largest size among names such as busbw_gb_s@1048576."""
    sizes = [int(size) for name in figures for _, at, size in [name.partition("@")] if at and size.isdigit()]
    return max(sizes, default=0)


def storage(ledger: Ledger) -> None:
    """Writing and reading, all nodes at once. Slow is a warning: whoever else uses the file system makes it slow."""
    folder = next(iter(ledger.request.shared), "")
    if not folder:
        ledger.note("storage is not measured: no shared folder is known")
        return

    def read(replies: Mapping[Member, Reply]) -> Rates:
        figures = next(iter(replies.values())).figures
        size = int(figures.get("bytes", 0))
        return {"write_mb_s": (size, figures["write_mb_s"]), "read_mb_s": (size, figures["read_mb_s"])}

    nodes = ledger.fit
    order = Order("storage", folder=folder, bytes=0 if ledger.request.on_gpus else CPU_BYTES)
    measure = Measure("storage-rate", order, read, members=len(nodes))
    for node, one in trial(ledger, {node: ((node, 0),) for node in nodes}, measure).items():
        ledger.blame(node, "storage-rate", f"{folder}: {one.said}", REMEDIES["storage-rate"], grade="fail" if one.failed else "warn")


def expected_transport(ledger: Ledger) -> tuple[str, ...]:
    """Words that must be among what NCCL chose: preflight.expect, else what fits fabric.kind. On one node nothing is sent between nodes."""
    site = ledger.request.site
    wanted = site.preflight.expect or _EXPECTED.get(site.fabric.kind, ())
    return tuple(word for word in wanted if word not in _BETWEEN_NODES or len(ledger.fit) > 1)


def transport(ledger: Ledger) -> None:
    """What NCCL really chose. Sockets never pass where a fast network is expected."""
    wanted = expected_transport(ledger)
    if not wanted or not ledger.request.on_gpus:
        return
    groups = {member: (member,) for member in ledger.members()}
    replies = ledger.ask(groups, Order("transport"), "transport")
    for member in whole(ledger, groups):
        reply = replies[member][member]
        grade, said = _chosen(reply, wanted)
        if said:
            ledger.blame(member[0], "transport", said, REMEDIES["transport"], grade=grade, item=ledger.item(member))


def _chosen(reply: Reply, wanted: Sequence[str]) -> tuple[Grade, str]:
    """Grade and words; no words: as it should be."""
    found = reply.words.get("transport", "").split()
    if not reply.ok or not found:
        return "unknown", reply.said or "NCCL has not said what it sends by"
    missing = [word for word in wanted if word not in found]
    if "Socket" in found and "Socket" not in wanted and _FAST & set(wanted):
        return "fail", f"NCCL sends by sockets ({' '.join(found)}), expected is {' '.join(wanted)}"
    return ("fail", f"NCCL does not use {' '.join(missing)}: it chose {' '.join(found)}") if missing else ("ok", "")
