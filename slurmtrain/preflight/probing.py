"""The door to measurements: one process for each device (a member), all told what to do by one conductor.

| order | asked by | figures | words |
|---|---|---|---|
| matmul | each | tflops, seconds, size | device, checksum |
| storage | each | write_mb_s, read_mb_s, bytes | |
| transport | each | | transport: all that was used since the start |
| reduce | groups | busbw_gb_s, seconds (of the largest size), busbw_gb_s@BYTES and seconds@BYTES of each | transport |
| pair | groups of two | send_gb_s (from this member to the other), receive_gb_s, latency_us; the rates @BYTES of each size | transport |
| nic | groups of two | NIC.write_gbps: from this member's NIC to the other's of that name | skipped: why there is nothing to measure |

tflops: 10^12 operations a second; gb_s, mb_s: 10^9, 10^6 bytes a second; gbps: 10^9 bits a second, as fabric.nic_gbps. `transport` has
words of preflight.transport, with blanks between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, get_args

from slurmtrain.config.site import SiteConfig

Member = tuple[str, int]
"""Node, and local rank on it."""
Deed = Literal["matmul", "reduce", "pair", "storage", "nic", "transport"]
TOKEN, DEVICE, INTERFACE, TASKS = (f"SLURMTRAIN_PROBE_{name}" for name in ("TOKEN", "DEVICE", "INTERFACE", "TASKS"))
"""A member's environment: the word by which the conductor knows its own, cuda or cpu, the interface to meet on (or none), tasks a node."""


@dataclass(frozen=True)
class Order:
    """What members are to do. What is left out fits the device.

    `sizes`: of a matmul the number of rows (all matrices are square; the first alone counts), of reduce and pair the bytes of each message;
    `repeats`: timed ones, of which the median counts; `bytes`, `folder`: of storage; `nics`: those to measure, none: all that are up.
    """

    do: Deed
    sizes: tuple[int, ...] = ()
    repeats: int = 0
    bytes: int = 0
    folder: str = ""
    nics: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Order:
        """Raises ValueError, TypeError for what is none."""
        if raw.get("do") not in get_args(Deed):
            raise ValueError(f"no order: {raw.get('do')!r}")
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
        return cls(**values)


@dataclass(frozen=True)
class Reply:
    """What came of an order. Not `ok`: it failed, or the member did not answer ("no answer in 5 s"); `said`: one line where it failed."""

    ok: bool
    said: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "said": self.said, "figures": dict(self.figures), "words": dict(self.words)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Reply:
        """Raises ValueError, TypeError, KeyError, AttributeError for what is none."""
        figures = {str(name): float(value) for name, value in raw["figures"].items()}
        return cls(bool(raw["ok"]), str(raw["said"]), figures, {str(name): str(value) for name, value in raw["words"].items()})


class Probes(Protocol):
    """Processes that live through the whole preflight.

    A member that does not answer in time, or whose process is gone, is lost: it is no longer among `members`, and what it is ordered to do
    fails at once, with the reason. One that hung and answers after all is there again. Nothing here raises for what a member does.
    """

    def members(self) -> tuple[Member, ...]:
        """Those that have reported and are not lost, in the order of the nodes."""

    def wait(self, wanted: Collection[Member], timeout_s: float) -> tuple[Member, ...]:
        """Wait until all of them are there, or the time is over; those of them that are, in the order of the nodes."""

    def each(self, members: Sequence[Member], order: Order, timeout_s: float) -> dict[Member, Reply]:
        """The same order to each at the same time; a reply for every one of them.

        After `timeout_s` at the latest, and before it RETURN_S of the conductor where one of them is just starting anew.
        """

    def groups(self, groups: Sequence[tuple[Member, ...]], order: Order, timeout_s: float) -> list[dict[Member, Reply]]:
        """Disjoint groups at the same time, each with a process group of its own whose store is at its first member; replies as in `each`.

        Where a member hangs or dies its group has failed: the others say so within `timeout_s`, and can be used again afterwards.
        """

    def close(self) -> None:
        """Send all of them away."""


def probe_command(python: str, address: str, port: int) -> tuple[str, ...]:
    """Argv of one member: what a step on every node runs, one task for each device."""
    host = f"[{address}]" if ":" in address else address
    return (python, "-m", "slurmtrain.runtime.probe", f"{host}:{port}")


def probe_environment(site: SiteConfig, token: str, tasks_per_node: int) -> dict[str, str]:
    """What members need in their environment, besides the ranks' own (fabric.environment)."""
    wanted = site.fabric.rendezvous_interface
    found = {TOKEN: token, DEVICE: site.device, TASKS: str(tasks_per_node)}
    return {**found, INTERFACE: wanted} if wanted else found
