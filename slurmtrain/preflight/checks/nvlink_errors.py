"""Error counters of NVLink, over the time since the boot. On a healthy fabric they stand at 0 for weeks.

| counter | warn | fail |
|---|---|---|
| Link recovery failed events | | any |
| Recovery Errors, Link recovery successful events, Total link recovery events | any | more than one a day |
| Replay, CRC, Effective, Symbol, Rx errors and the like | more than one an hour | more than 100 an hour |

DCGM's health check fails a GPU for a recovery that failed and warns of one that succeeded. One link of 5,760 with 505 recoveries, all
others with none, was down for good five days later (github.com/marin-community/marin/issues/9086).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._gpus import DAY_S, folded
from slurmtrain.preflight.finding import Grade, Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.nvlink import among_several

HOUR_S = 3600.0
_REMEDY = "have the GPU, its baseboard or cable looked at (`nvidia-smi nvlink -e`); `nvidia-smi nvlink -re` sets the counters to 0"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 a check's signature
    seconds = facts["uptime_s"] or DAY_S
    for gpu, links in facts["errors"].items():
        for link, counters in links.items():
            yield from folded((int(gpu), trouble) for trouble in _troubles(link, counters, seconds))


def _troubles(link: str, counters: Mapping[str, int], seconds: float) -> Iterator[Trouble]:
    graded = {name: grade for name, count in counters.items() if (grade := grade_of(name, count, seconds)) != "ok"}
    if graded:
        bad: Grade = "fail" if "fail" in graded.values() else "warn"
        told = ", ".join(f"{name} {counters[name]}" for name, grade in graded.items() if grade == bad)
        yield Trouble(bad, f"NVLink {link}: {told}", _REMEDY)


def grade_of(name: str, count: int, seconds: float) -> Grade:
    """Of one counter after so many seconds.

    >>> grade_of("Link recovery failed events", 1, 1e6), grade_of("Recovery Errors", 1, 1e6), grade_of("CRC Errors", 5, 1e6)
    ('fail', 'warn', 'ok')
    """
    words, hours, days = name.lower(), max(seconds / HOUR_S, 1.0), max(seconds / DAY_S, 1.0)
    if "recovery" in words:
        return "fail" if "failed" in words or count > days else "warn"
    return "fail" if count > 100 * hours else "warn" if count > hours else "ok"


CHECK = Check("nvlink-errors", "nvlink", "no errors on NVLink", judge, wanted=among_several)
