"""When a rate is slow. Pure.

A rate is compared with rates of its kind alone: the same measurement, size, number of members, and model of the device.

| there is | healthy is |
|---|---|
| a recorded baseline of its kind | that |
| none, and three other rates of its kind in this round, or more | their median |
| neither | not known: the rate is told, and not judged |

| site | slow is less than | in each of |
|---|---|---|
| GPUs | 90 % of healthy | 3 tries |
| CPUs | a third of healthy | 5 tries |
| any, storage | a fifth of healthy | 4 tries, and it is a warning: other jobs write there, too |

On GPUs nothing else runs on a node, and what is measured repeats within a few per cent. Where ranks share cores the scheduler gives equal
processes unequal shares for a while: a factor of two between them is nothing, and with twenty other processes on two cores rates of pairs
were seen a factor of ten apart. But it does not starve the same one to a third of its peers in five tries one after another, each try
judged by what others reach in that very try; and what is throttled does not come above it in one of five.

Where all nodes are one machine (fabric.kind = "loopback", CPUs) devices and pairs are measured one after another: side by side all of them
wait for the same cores, and one that is throttled to a tenth of a core is hardly behind seven others that share two. And what the machine
reached when a baseline was recorded says nothing about how busy it is now: none counts there.

80 % of nominal is for what one NIC writes to another at large messages (ib_write_bw), and for nothing else: an all-reduce of four nodes
with 8 NICs each, all healthy, has 74 % of nominal at 16 GiB and 12.5 % at 16 MiB.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

LEAST_PEERS = 3
NIC_SHARE = 0.8
"""Of nominal, that a NIC must reach in each direction."""

K = TypeVar("K")
Metric = Literal["matmul_tflops", "domain_reduce_gb_s", "world_reduce_gb_s", "pair_gb_s", "write_mb_s", "read_mb_s"]
UNITS: Mapping[str, str] = {
    "matmul_tflops": "TFLOPS",
    "domain_reduce_gb_s": "GB/s",
    "world_reduce_gb_s": "GB/s",
    "pair_gb_s": "GB/s",
    "write_mb_s": "MB/s",
    "read_mb_s": "MB/s",
}


@dataclass(frozen=True)
class Kind:
    """What may be compared. `size`: rows of a matmul, else bytes; `members`: that took part at the same time; `device`: its model."""

    metric: Metric
    size: int
    members: int
    device: str


@dataclass(frozen=True)
class Rule:
    """Slow is less than `share` of healthy in each of `tries` tries."""

    share: float
    tries: int


GPU, CPU, STORAGE = Rule(0.9, 3), Rule(1 / 3, 5), Rule(0.2, 4)


def rule_of(metric: Metric, *, on_gpus: bool) -> Rule:
    """The table above."""
    if metric in {"write_mb_s", "read_mb_s"}:
        return STORAGE
    return GPU if on_gpus else CPU


@dataclass(frozen=True)
class Slow:
    """A rate, and what it should have been: in the metric's unit."""

    value: float
    healthy: float
    against: str
    unit: str = ""

    def __str__(self) -> str:
        """Figures for people: "612 TFLOPS, and 787 TFLOPS is the median of 7 others"."""
        return f"{self.value:.3g} {self.unit}, and {self.healthy:.3g} {self.unit} is {self.against}"


def slow(rates: Mapping[K, tuple[Kind, float]], share: float, recorded: Callable[[Kind], float | None]) -> dict[K, Slow]:
    """Those of the rates of one round that are slow. `recorded`: the baseline of a kind.

    >>> kind = Kind("pair_gb_s", 1 << 20, 2, "")
    >>> sorted(slow({"ab": (kind, 10.0), "ac": (kind, 11.0), "bc": (kind, 12.0), "cd": (kind, 5.0)}, 0.9, {}.get))
    ['cd']
    """
    kinds: dict[Kind, dict[K, float]] = {}
    for key, (kind, value) in rates.items():
        kinds.setdefault(kind, {})[key] = value
    found: dict[K, Slow] = {}
    for kind, values in kinds.items():
        baseline = recorded(kind)
        judged = _below(values, share, baseline) if baseline is not None else _below_peers(values, share)
        found |= {key: Slow(value, healthy, against, UNITS[kind.metric]) for key, (value, healthy, against) in judged.items()}
    return found


def judged(rates: Mapping[K, tuple[Kind, float]], recorded: Callable[[Kind], float | None]) -> bool:
    """Whether there is anything that each of the rates can be compared with."""
    counts: dict[Kind, int] = {}
    for kind, _ in rates.values():
        counts[kind] = counts.get(kind, 0) + 1
    return all(count > LEAST_PEERS or recorded(kind) is not None for kind, count in counts.items())


def _below(values: Mapping[K, float], share: float, healthy: float) -> dict[K, tuple[float, float, str]]:
    return {key: (value, healthy, "the recorded baseline") for key, value in values.items() if value < share * healthy}


def _below_peers(values: Mapping[K, float], share: float) -> dict[K, tuple[float, float, str]]:
    """Each against the median of the others."""
    peers = len(values) - 1
    if peers < LEAST_PEERS:
        return {}
    ordered, found = sorted(values.values()), dict[K, tuple[float, float, str]]()
    for key, value in values.items():
        if value < share * (healthy := _median_without(ordered, bisect_left(ordered, value))):
            found[key] = (value, healthy, f"the median of {peers} others")
    return found


def _median_without(ordered: list[float], index: int) -> float:
    """The median of all but one of these, which are in order."""
    count = len(ordered) - 1
    low, high = ((at if at < index else at + 1) for at in ((count - 1) // 2, count // 2))
    return (ordered[low] + ordered[high]) / 2
