"""What NCCL really chose to send by, read from its own words (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH). Pure.

| word | said by |
|---|---|
| IB, RoCE | a channel "via NET/IB/3" (or IBext_v8, NCCL RDMA Plugin v10), and the link of device 3 in "NET/IB : Using [3]mlx5_4:1/RoCE" |
| EFA, OFI | a channel via a libfabric plugin, and its provider: efa, or another that is no socket (cxi of Slingshot) |
| Socket | a channel "via NET/Socket/0", or a libfabric provider over TCP or UDP |
| GPUDirect | a channel of these with "/GDRDMA": the NIC reads and writes the GPU's memory |
| NVLS | "16 nvls channels", "Connected NVLS tree": the NVLink switch reduces |
| P2P, SHM | channels within a node: over NVLink or PCIe, through the host's memory |

A communicator of several nodes that tells of no channel speaks through "Using network X". Wording of NCCL 2.4 to 2.31
(src/transport/net.cc, net_ib.cc, init.cc) and of aws-ofi-nccl.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

GLOO = "gloo"
WORDS = ("IB", "RoCE", "EFA", "OFI", "Socket", "GPUDirect", "NVLS", "P2P", "SHM", GLOO)
"""In the order in which they are told."""

_CHANNEL = re.compile(r"\[(?:send|receive)\] via NET/([^/\n]+)/(\d+)([^\s]*)")
_WITHIN = re.compile(r"(?:Channel|Ring) \d+\S* : .* via (P2P|SHM|direct shared memory)")
_NETWORK = re.compile(r"Using network (.+?)\s*$", re.MULTILINE)
_NODES = re.compile(r"\bnNodes (\d+)")
_USING = re.compile(r"NET/IB : Using(.*)")
_DEVICE = re.compile(r"\[(\d+)\]=?\{?(?:\[\d+\] ?)?([^\s:\[{]+):\d+/(IB|RoCE)")
_VIRTUAL = re.compile(r"NET/IB : Made virtual device \[(\d+)\] name=([^\s+]+)")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;]+)")
_NVLS = re.compile(r"\b[1-9]\d* nvls channels|Connected NVLS tree")


def transports(text: str) -> tuple[str, ...]:
    """Words for all that a process has used, in the order of WORDS; none where NCCL has not said.

    >>> transports("[send] via NET/IB/0/GDRDMA\\nNET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0")
    ('RoCE', 'GPUDirect')
    """
    found = set(_between(text))
    found |= {"SHM" if how != "P2P" else "P2P" for how in _WITHIN.findall(text)}
    if _NVLS.search(text):
        found.add("NVLS")
    return in_order(found)


def in_order(words: Iterable[str]) -> tuple[str, ...]:
    """The words, each once, in the order of WORDS."""
    there = set(words)
    return tuple(word for word in WORDS if word in there)


def _between(text: str) -> Iterator[str]:
    """Words for what was sent between nodes."""
    links, providers = _links(text), _PROVIDER.findall(text)
    channels = _CHANNEL.findall(text)
    for name, device, rest in channels:
        kinds = set(_kinds(name, links, providers, int(device)))
        yield from kinds
        if "/GDRDMA" in rest and "Socket" not in kinds:
            yield "GPUDirect"
    if not channels and any(int(count) > 1 for count in _NODES.findall(text)):
        for name in _NETWORK.findall(text):
            yield from _kinds(name, links, providers, None)


def _kinds(network: str, links: dict[int, str], providers: list[str], device: int | None) -> Iterator[str]:
    """What a network of this name is; `device`: which of its devices, where it is known."""
    if network.startswith("Socket"):
        yield "Socket"
    elif network.startswith("IB") or "RDMA" in network:
        yield from [links[device]] if device in links else sorted(set(links.values())) or ["IB"]
    else:
        yield from sorted({_provider(name) for name in providers}) or ["OFI"]


def _provider(name: str) -> str:
    if name.startswith("efa"):
        return "EFA"
    return "Socket" if re.match(r"(tcp|udp|sockets|net)\b", name) else "OFI"


def _links(text: str) -> dict[int, str]:
    """Link layer of each of NCCL's IB devices, by its number."""
    found: dict[int, str] = {}
    by_name: dict[str, str] = {}
    for line in _USING.findall(text):
        for number, name, link in _DEVICE.findall(line):
            found[int(number)] = by_name[name] = link
    for number, name in _VIRTUAL.findall(text):
        if name in by_name:
            found[int(number)] = by_name[name]
    return found
