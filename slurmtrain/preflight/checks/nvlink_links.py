"""NVLink that is down, or slower than its neighbours: collectives go over what is left, or over PCIe, and every rank waits.

How many links a board has is known for those of the SXM form; of other boards (some with a bridge, some without) as many are wanted as
the GPU of the same index has on most nodes. Per direction 300, 450 and 900 GB/s (hardware.csv: NVLink 3, 4, 5) are 12 links of 25 and 18
of 25 and 50 GB/s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._gpus import folded, most, named
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.nvlink import among_several

LINKS = {
    "NVIDIA A100 SXM": 12,
    "NVIDIA H100 SXM": 18,
    "NVIDIA H200 SXM": 18,
    "NVIDIA GH200 SXM": 18,
    "NVIDIA B200 SXM": 18,
    "NVIDIA B300 SXM": 18,
    "NVIDIA GB200 SXM": 18,
    "NVIDIA GB300 SXM": 18,
}
"""By node.gpu of the site."""
SLOW = 0.9
_REMEDY = "see `nvidia-smi nvlink -s`, `dmesg | grep -iE 'xid|nvlink'` and nvidia-fabricmanager on the node; reset its GPUs, else reboot"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    wanted = LINKS.get(request.site.node.gpu or "")
    up = _up(facts)
    if wanted is not None:
        yield from folded((gpu, _down(count, wanted)) for gpu, count in up.items() if count < wanted)
    usual = most(speed for links in facts["links"].values() for speed in links.values() if speed is not None)
    for gpu, links in facts["links"].items():
        slow = [link for link, speed in links.items() if speed is not None and usual is not None and speed < SLOW * usual]
        if slow:
            said = f"NVLink {', '.join(slow)} at {links[slow[0]]:g} GB/s, others at {usual:g}"
            yield Trouble("fail", said, _REMEDY, named([int(gpu)]))


def _up(facts: Facts) -> dict[int, int]:
    """By GPU, how many of its links are up."""
    return {int(gpu): sum(speed is not None for speed in links.values()) for gpu, links in facts["links"].items()}


def _down(count: int, wanted: int) -> Trouble:
    return Trouble("fail", f"{count} NVLinks of {wanted} are up", _REMEDY)


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:
    if request.site.node.gpu in LINKS:
        return
    up = {node: _up(known) for node, known in facts.items()}
    counts: dict[int, list[int]] = {}
    for by_gpu in up.values():
        for gpu, count in by_gpu.items():
            counts.setdefault(gpu, []).append(count)
    usual = {gpu: most(sorted(found, reverse=True)) or 0 for gpu, found in counts.items()}
    for node, by_gpu in up.items():
        few = ((gpu, _down(count, usual[gpu])) for gpu, count in by_gpu.items() if count < usual[gpu])
        yield from ((node, trouble) for trouble in folded(few))


CHECK = Check("nvlink-links", "nvlink", "all NVLinks are up, at full speed", judge, compare, wanted=among_several)
