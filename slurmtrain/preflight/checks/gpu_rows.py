"""Memory that is worn out: rows (since Ampere) and pages (before) that were, or must be, replaced by spare ones.

| what | grade |
|---|---|
| a row could not be remapped | fail: its maker replaces such a board |
| a row waits for its remapping | warn on GPUs that put the page around it out of use at once: "new workloads can be launched"; else fail: |
| | the bad row is still in use |
| a page waits for its retirement | fail, likewise |
| more than `MOST_PAGES` retired pages | fail: as in DCGM's health check (DCGM_LIMIT_MAX_RETIRED_PAGES) |
| a bank of memory without spare rows | warn: the next bad row there is a failure |

Source: docs.nvidia.com, "GPU Memory Error Management" (flags; which GPUs offline pages: GA100, GH100, GB10x) and "Dynamic Page Retirement".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmtrain.preflight.checks._gpus import folded, gpus
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

MOST_PAGES = 63
OFFLINES = re.compile(r"\b(A30|A100|A800|H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300)\b")
_RESET = "drain the node and reset the GPU (`nvidia-smi -r -i INDEX`), or reboot"
_REPLACE = "have the GPU replaced"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 a check's signature
    yield from folded((gpu["index"], trouble) for gpu in gpus(facts) for trouble in _troubles(gpu))


def _troubles(gpu: Facts) -> Iterator[Trouble]:
    if gpu["remap_failure"] == "Yes":
        yield Trouble("fail", "a row of its memory could not be remapped", _REPLACE)
    if gpu["remap_pending"] == "Yes":
        mild = OFFLINES.search(gpu["name"])
        yield Trouble("warn" if mild else "fail", "a row of its memory waits to be remapped", _RESET)
    if gpu["retirement_pending"] == "Yes":
        yield Trouble("fail", "a page of its memory waits to be retired", _RESET)
    if gpu["retired"] > MOST_PAGES:
        yield Trouble("fail", f"{gpu['retired']} pages of its memory are retired, more than {MOST_PAGES}", _REPLACE)
    if gpu["banks_without_spares"]:
        yield Trouble("warn", f"{gpu['banks_without_spares']} banks of its memory have no spare rows left", _REPLACE)


CHECK = Check("gpu-rows", "gpus", "no bad rows or pages of memory in use", judge, wanted=nvidia)
