"""GPUs whose driver forgets them between two programs: each start initialises them anew, and counts of errors begin at 0 again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._gpus import gpus, told_once
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_TROUBLE = Trouble(
    "warn", "persistence mode is off", "start nvidia-persistenced on the node (`systemctl enable --now nvidia-persistenced`)"
)


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:  # noqa: ARG001 a check's signature
    off = [node for node, known in facts.items() if any(gpu["persistence"] == "Disabled" for gpu in gpus(known))]
    yield from told_once(off, _TROUBLE)


CHECK = Check("gpu-persistence", "gpus", "the driver keeps the GPUs initialised", compare=compare, wanted=nvidia)
