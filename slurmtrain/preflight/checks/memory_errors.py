"""Errors of the host's memory that its controllers could not correct, since boot (kernel: driver-api/edac, ue_count)."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.units import counted


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 as others of its kind
    for name, count in facts["uncorrected"].items():
        said = f"{counted(count, 'memory error')} since boot that could not be corrected"
        yield Trouble("fail", said, "have the module replaced (`edac-util -v` or the BMC's log names it), then reboot", name)


CHECK = Check("memory-errors", "memory", "the host's memory has no uncorrected errors", judge)
