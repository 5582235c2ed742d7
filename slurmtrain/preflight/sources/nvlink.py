"""NVLink of the node's GPUs: `nvidia-smi nvlink -s` (which links are up, how fast) and `-e` (their error counters).

`links`: by GPU, by link, gigabytes per second, None: down. A GPU all of whose links are down has none: nvidia-smi prints one line for it,
and its peers leave out the links to it. `errors`: by GPU, by link, counters that are not 0. Counters of traffic and of what forward error
correction has mended are left out: they grow on healthy links, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import LATE, SOURCE_S, limit_s, nvidia, refused, uptime_s

_GPU = re.compile(r"^\s*GPU (\d+): (.*?)(?: \(UUID|$)")
_LINK = re.compile(r"^\s*Link (\d+): (.*)$")
_SPEED = re.compile(r"([\d.]+) GB/s")
_COUNTER = re.compile(r"(.*?): (\d+)$")
_NO_ERRORS = re.compile(r"FEC|BER|packets|bytes|PLR|Xmit|Rcv", re.IGNORECASE)


def among_several(request: Request) -> bool:
    """A GPU alone on its node (GH200) has nobody to be linked to."""
    return nvidia(request) and request.site.node.gpus > 1


def look(machine: Machine, request: Request) -> Facts:
    status = machine.run("nvidia-smi", "nvlink", "-s", timeout_s=limit_s(request) / 2)
    links = parse_links(status.out)
    if not links:
        raise refused(status)
    counters = machine.run("nvidia-smi", "nvlink", "-e", timeout_s=limit_s(request) / 2)
    return {"links": links, "errors": parse_errors(counters.out), "uptime_s": uptime_s(machine)}


def parse_links(text: str) -> dict[str, dict[str, float | None]]:
    """Of `nvidia-smi nvlink -s`; a GPU without NVLink has no links."""
    found: dict[str, dict[str, float | None]] = {}
    for gpu, link, said in _lines(text):
        links = found.setdefault(gpu, {})
        if link:
            speed = _SPEED.match(said)
            links[link] = float(speed.group(1)) if speed else None
    return found


def parse_errors(text: str) -> dict[str, dict[str, dict[str, int]]]:
    """Of `nvidia-smi nvlink -e`: by GPU, link and counter, what is not 0."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for gpu, link, said in _lines(text):
        counter = _COUNTER.match(said)
        if link and counter and not _NO_ERRORS.search(counter.group(1)) and int(counter.group(2)):
            found.setdefault(gpu, {}).setdefault(link, {})[counter.group(1)] = int(counter.group(2))
    return found


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """(GPU, link, what is said of it); once without a link for each GPU."""
    gpu = ""
    for line in text.splitlines():
        if head := _GPU.match(line):
            gpu = head.group(1)
            yield gpu, "", ""
        elif gpu and (link := _LINK.match(line)):
            yield gpu, link.group(1), link.group(2).strip()


SOURCE = Source("nvlink", look, late=LATE, wanted=among_several, timeout_s=SOURCE_S)
