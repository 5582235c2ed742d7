"""The site's fault log: every end of an attempt, one JSON line, of all users' runs; and the rate of failures that follows from it.

    {"v":1,"t":..,"site":"alps","user":"ada","job_id":"4711","attempt":2,"cause":"node_failure","nodes":"n[1-4]","hours":3.25,"bad":"n3",
     "detail":".."}

`nodes`: all that the job had meanwhile, spares too, so that nodes times `hours` are the node-days of the rate; `bad`: those to blame, empty
where none is. Lines that are torn, foreign, or of another form are passed over: many machines write, and some file systems tear.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from slurmtrain.errors import SlurmError, one_line
from slurmtrain.slurm.hostlist import expand
from slurmtrain.telemetry.poisson import interval
from slurmtrain.units import moment

LOG_VERSION = 1
LEAST_FAULTS = 5
"""From so many on a log says more than a published rate: the interval of its rate is within a factor of three."""
LONGEST_H = 1e6
"""No attempt takes longer: what says so is no end. In a file that all may write one such line would make the site's rate nothing."""
_DETAIL = 300
_RANGE = re.compile(r"(\d+)-(\d+)")
_MOST_NODES = 200_000
_NEWEST_BYTES = 1 << 22


@dataclass(frozen=True)
class LoggedEnd:
    """The end of an attempt. `t`: seconds since the epoch; `nodes`, `bad`: host lists; `hours`: for which the attempt had the nodes."""

    t: float
    site: str
    user: str
    job_id: str
    attempt: int
    cause: str
    nodes: str
    hours: float
    bad: str = ""
    detail: str = ""

    def to_line(self) -> bytes:
        told = {"v": LOG_VERSION, **asdict(self), "hours": round(self.hours, 6), "detail": one_line(self.detail, _DETAIL)}
        return (json.dumps(told, separators=(",", ":")) + "\n").encode()


@dataclass(frozen=True)
class Rate:
    """Faults of nodes by node-days. `per_node_day`, and the limits of its 95 % interval; None where there are no node-days."""

    faults: int
    node_days: float
    per_node_day: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass
class NodeFaults:
    """One node's. `node_days`: how long attempts had it; `causes`: how often each; `last`: when the newest was."""

    node: str
    node_days: float = 0.0
    causes: Counter[str] = field(default_factory=Counter)
    last: float = -math.inf

    @property
    def faults(self) -> int:
        return sum(self.causes.values())


def append(path: Path, line: bytes) -> None:
    """Add a line, in one write. A file that is not there is made, for everybody to write to. Raises OSError.

    Never through a symbolic link, nor into what is no file: others may write to the folder, too.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        fd = os.open(path, flags | os.O_CREAT, 0o666)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "is no regular file", str(path))
        if found.st_size == 0 and found.st_uid == os.geteuid():
            os.fchmod(fd, 0o666)  # whatever the umask of whoever comes first
        os.write(fd, line)
    finally:
        os.close(fd)


def is_logged(path: Path, site: str, job_id: str, attempt: int) -> bool:
    """Whether an attempt's end is in the newest part of the log. Raises OSError, but for a file that is not there."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _NEWEST_BYTES))
            ends = list(_ends(file))
    except FileNotFoundError:
        return False
    return any((end.site, end.job_id, end.attempt) == (site, job_id, attempt) for end in ends)


def read_ends(path: Path, since: float = -math.inf) -> Iterator[LoggedEnd]:
    """The ends from a time on, in the order of the file. Raises OSError where it cannot be read."""
    with open(path, "rb") as file:
        yield from (end for end in _ends(file) if end.t >= since)


def _ends(lines: Iterable[bytes]) -> Iterator[LoggedEnd]:
    names = {one.name for one in fields(LoggedEnd)}
    for line in lines:
        try:
            raw = json.loads(line)
            yield _checked({name: value for name, value in raw.items() if name in names})
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            continue


def _checked(raw: dict[str, Any]) -> LoggedEnd:
    end = LoggedEnd(**{**raw, "t": moment(raw["t"]), "hours": float(raw["hours"])}) if {"t", "hours"} <= raw.keys() else None
    if end is None or not 0 <= end.hours <= LONGEST_H:
        raise ValueError("not an end")
    if not all(isinstance(text, str) for text in (end.site, end.user, end.job_id, end.cause, end.nodes, end.bad, end.detail)):
        raise TypeError("not an end")
    return end


def by_node(ends: Iterable[LoggedEnd]) -> list[NodeFaults]:
    """Every node of the log, those with most faults first, of equals the one with the newest."""
    found: dict[str, NodeFaults] = {}
    names = cache(_names)
    for end in ends:
        for name in names(end.nodes):
            found.setdefault(name, NodeFaults(name)).node_days += end.hours / 24
        for name in names(end.bad):
            one = found.setdefault(name, NodeFaults(name))
            one.causes[end.cause] += 1
            one.last = max(one.last, end.t)
    return sorted(found.values(), key=lambda one: (-one.faults, -one.last, one.node))


def _names(nodes: str) -> Sequence[str]:
    """None for what is no host list, or one longer than any machine: others write here, too."""
    if sum(int(last) - int(first) for first, last in _RANGE.findall(nodes)) > _MOST_NODES:
        return ()
    try:
        return expand(nodes)
    except SlurmError:
        return ()


def rate_of(nodes: Iterable[NodeFaults]) -> Rate:
    """The rate of all of them together."""
    known = list(nodes)
    faults, days = sum(one.faults for one in known), math.fsum(one.node_days for one in known)
    if days <= 0:
        return Rate(faults, days)
    low, high = interval(faults)
    return Rate(faults, days, faults / days, low / days, high / days)


def measured_rate(path: Path, site: str, since: float) -> Rate | None:
    """What the log says of a site, where it has enough faults to say something; None also where it cannot be read. Never raises."""
    try:
        rate = rate_of(by_node(end for end in read_ends(path, since) if end.site == site))
    except OSError:
        return None
    return rate if rate.faults >= LEAST_FAULTS and rate.per_node_day is not None else None
