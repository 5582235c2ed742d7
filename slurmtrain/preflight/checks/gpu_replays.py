"""PCIe packets that had to be sent again since the GPU was reset.

A few in weeks are healthy. 8 in a minute are the most that NVIDIA recommends (DCGM_LIMIT_MAX_PCIREPLAY_RATE; DCGM warns of more); a link
that has more than that as the mean of all the time since the boot is a bad one. A rollover is four in a row, after which the link is
trained anew.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks._gpus import folded, gpus
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

PER_MINUTE = 8
LEAST_S = 3600.0
"""A node that has just been booted is not judged by its first minutes."""
_REMEDY = "have the GPU and its riser reseated; see `dmesg | grep -i aer` on the node"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 a check's signature
    minutes = max(facts["uptime_s"] or LEAST_S, LEAST_S) / 60
    yield from folded((gpu["index"], trouble) for gpu in gpus(facts) for trouble in _troubles(gpu, minutes))


def _troubles(gpu: Facts, minutes: float) -> Iterator[Trouble]:
    replays, rollovers = gpu["replays"] or 0, gpu["rollovers"] or 0
    if replays > PER_MINUTE * minutes:
        yield Trouble("fail", f"{replays} replays on PCIe, {replays / minutes:.0f} a minute", _REMEDY)
    elif rollovers:
        yield Trouble("warn", f"{rollovers} rollovers of the replay number on PCIe", _REMEDY)


CHECK = Check("gpu-replays", "gpus", "few replays on PCIe", judge, wanted=nvidia)
