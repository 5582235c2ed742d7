"""Ports that trained to fewer lanes or a lower speed than the site's: fabric.nic_gbps."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks._ports import name_of, sorted_out
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.infiniband import asked


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    for port in sorted_out(facts, request).slow:
        remedy = f"have cable and transceiver cleaned or replaced; look at the switch's port (`mlxlink -d {port['device']}`)"
        yield Trouble("fail", f"runs at {port['rate']}, {request.site.fabric.nic_gbps} Gb/s wanted", remedy, name_of(port))


CHECK = Check("ib-rate", "infiniband", "InfiniBand and RoCE ports run at fabric.nic_gbps", judge, wanted=asked)
