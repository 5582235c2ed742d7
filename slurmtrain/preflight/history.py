"""The history of preflights: one JSON line for each node and preflight, of all runs and of the command.

    {"v":1,"t":..,"node":"n3","level":"quick","ok":false,"by":"attempt","site":"alps","job_id":"4711","run":"llama","seconds":4.2,
     "findings":[{"check":"gpu-ecc","grade":"fail","said":"..","remedy":"..","item":"GPU 3"}],"figures":{"matmul_tflops":702.1}}

`level`: quick (every check of health), full (measured as well), or part (some checks alone: it tells of faults, never that a node is fit).
All lines of a preflight are one write. Lines that are torn, foreign, or of another form are passed over: many machines write.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slurmtrain.atomic import Disk
from slurmtrain.config.expand import expand
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import one_line
from slurmtrain.preflight.finding import OUT, Finding

HISTORY_VERSION = 1
HISTORY_NAME = "preflight.jsonl"
NEWEST_BYTES = 1 << 22
"""Of the end of the file that is read for what happened lately: some ten thousand lines."""
_SAID = 300

Level = Literal["part", "quick", "full"]
LEVELS: tuple[Level, ...] = ("part", "quick", "full")


@dataclass(frozen=True)
class Entry:
    """One node in one preflight. `t`: when it ended, seconds since the epoch; `by`: attempt, command, or here (the node by itself)."""

    t: float
    node: str
    level: Level
    ok: bool
    by: str = "command"
    site: str = ""
    job_id: str = ""
    run: str = ""
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    def to_line(self) -> bytes:
        raw = {
            "v": HISTORY_VERSION,
            **{name: getattr(self, name) for name in ("t", "node", "level", "ok", "by", "site", "job_id", "run")},
            "seconds": round(self.seconds, 3),
            "findings": [_short(one) for one in self.findings],
            "figures": {name: value for name, value in self.figures.items() if math.isfinite(value)},
        }
        return (json.dumps({key: value for key, value in raw.items() if value not in ("", [], {})}, separators=(",", ":")) + "\n").encode()

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Entry:
        """Raises ValueError, TypeError, KeyError for what is none."""
        if raw["level"] not in LEVELS or not isinstance(raw["ok"], bool) or not math.isfinite(float(raw["t"])):
            raise ValueError("no entry of a preflight")
        words = {name: str(raw.get(name, "")) for name in ("by", "site", "job_id", "run")}
        findings = tuple(Finding.from_json({"node": raw["node"], **one}) for one in raw.get("findings", ()))
        figures = {str(name): float(value) for name, value in raw.get("figures", {}).items()}
        return cls(
            float(raw["t"]),
            str(raw["node"]),
            raw["level"],
            raw["ok"],
            **words,
            seconds=float(raw.get("seconds", 0)),
            findings=findings,
            figures=figures,
        )


def entries(
    nodes: Sequence[str],
    findings: Iterable[Finding],
    figures: Mapping[str, Mapping[str, float]],
    *,
    t: float,
    level: Level,
    seconds: float,
    **about: str,
) -> list[Entry]:
    """One for each node; a node is fit where nothing that was found keeps it out. `about`: by, site, job_id, run."""
    own: dict[str, list[Finding]] = {node: [] for node in nodes}
    for one in findings:
        if one.node in own:
            own[one.node].append(one)
    return [
        Entry(
            t,
            node,
            level,
            ok=not any(one.grade in OUT for one in own[node]),
            seconds=seconds,
            findings=tuple(own[node]),
            figures=figures.get(node, {}),
            **about,
        )
        for node in nodes
    ]


def history_path(site: SiteConfig, root: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Where the lines go: preflight.history of the site, else preflight.jsonl in the root; None where neither is known.

    Raises ConfigError where the site's names a variable that is not set.
    """
    said = site.preflight.history
    if said is not None:
        return expand(said, environ, where=f"site {site.name}", key="preflight.history")
    return None if root is None else root / HISTORY_NAME


def append(path: Path, disk: Disk, found: Sequence[Entry]) -> None:
    """Add the lines of one preflight, in one write. Raises OSError."""
    if found:
        disk.append(path, b"".join(one.to_line() for one in found))


def read_history(path: Path, since: float = -math.inf) -> Iterator[Entry]:
    """All entries from a time on, in the order of the file; a file that is not there has none. Raises OSError."""
    if not path.exists():
        return
    if not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file: correct preflight.history of the site", str(path))
    with open(path, "rb") as file:
        yield from (one for one in _entries(file) if one.t >= since)


def read_newest(path: Path) -> list[Entry]:
    """The entries of the last NEWEST_BYTES of the file; none where it cannot be read, or is a device or a pipe: they may have no end."""
    try:
        if not path.is_file():
            return []
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - NEWEST_BYTES))
            return list(_entries(file.read(NEWEST_BYTES).splitlines()))
    except OSError:
        return []


def _entries(lines: Iterable[bytes]) -> Iterator[Entry]:
    for line in lines:
        try:
            yield Entry.from_json(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            continue


def _short(one: Finding) -> dict[str, Any]:
    raw = one.to_json()
    raw.pop("node", None)
    return {key: one_line(value, _SAID) if isinstance(value, str) else value for key, value in raw.items()}
