"""GPUs that somebody computes on, or whose memory is taken, before the start: ranks would run out of memory, or wait for each other.

Programs that only draw, and the daemons of MPS and DCGM, are left alone. Where nodes are shared and the job sees more GPUs than it has,
nobody can say here whose they are: nothing is checked. On coherent boards (GH200, GB200) the kernel itself keeps pages in the GPU's
memory; there memory without a program is told, and keeps no node out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slurmtrain.preflight.checks._gpus import folded, gpus
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import all_ours, computing, nvidia
from slurmtrain.units import counted, format_size

MOST_SHARE = 0.02
MOST_MIB = 1024
"""A driver without a reserve of its own (before 510) shows up to 600 MiB as used on an idle GPU."""
_END = "end it (`ps -fp PID` on the node says whose it is), or have the job's epilog do so"
_HIDDEN = "see `fuser -v /dev/nvidia*` on the node as root: a container or a program that cannot die; else reboot"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    if all_ours(facts, request):
        yield from folded((gpu["index"], trouble) for gpu in gpus(facts) for trouble in _troubles(gpu))


def _troubles(gpu: Mapping[str, Any]) -> Iterator[Trouble]:
    programs, used, total = computing(gpu), gpu["used_mib"] or 0, gpu["memory_mib"] or 0
    if programs:
        first = programs[0]
        more = f" and {counted(len(programs) - 1, 'other')}" if len(programs) > 1 else ""
        program = first["name"].rpartition("/")[2] or "a program"
        yield Trouble("fail", f"{program} (pid {first['pid']}){more} computes on it", _END)
    elif used > max(MOST_MIB, MOST_SHARE * total):
        coherent = any(word in gpu["name"] for word in ("GH200", "GB200", "GB300"))
        said = f"{format_size(used << 20)} of its memory are in use, by no program that can be seen"
        yield Trouble("warn" if coherent else "fail", said, _HIDDEN)


CHECK = Check("gpu-busy", "gpus", "nobody else computes on the GPUs", judge, wanted=nvidia)
