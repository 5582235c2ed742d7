"""What healthy nodes of a site measured: NAME.baseline.json, as `preflight --record` writes it.

    {"v":1,"rows":[{"metric":"matmul_tflops","size":8192,"members":1,"device":"NVIDIA H100 80GB HBM3","value":702.1,"unit":"TFLOPS",
                    "spread":0.03,"count":64,"when":1764460800.0,"versions":{"torch":"2.13.0"}}]}

`value`: the median of `count` values, `spread`: their range as a share of it. A row is known by metric, size, members and device; recording
again replaces it and keeps the others. Rows of another device do not count: what an A100 reached says nothing about an H100.

It is looked for at preflight.baseline of the site; else in the folders of site files, first hit wins.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any

from slurmtrain.atomic import Disk, to_json
from slurmtrain.config.expand import expand
from slurmtrain.config.site import SiteConfig
from slurmtrain.config.sites import search_path
from slurmtrain.errors import ConfigError, one_line
from slurmtrain.preflight.rates import UNITS, Kind

BASELINE_VERSION = 1
SUFFIX = ".baseline.json"


@dataclass(frozen=True)
class Row:
    """One healthy rate. `when`: seconds since the epoch; `versions`: of the packages that measured it."""

    metric: str
    size: int
    members: int
    device: str
    value: float
    unit: str
    spread: float = 0.0
    count: int = 1
    when: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, int, str]:
        return (self.metric, self.size, self.members, self.device)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Row:
        """Raises KeyError, TypeError, ValueError for what is none."""
        known = {one.name for one in fields(cls)}
        row = cls(**{name: value for name, value in raw.items() if name in known})
        if not all(isinstance(one, kind) for one, kind in zip((*row.key, row.unit), (str, int, int, str, str), strict=True)):
            raise TypeError(f"{row.key}: not a metric, size, members and device")
        if not (math.isfinite(float(row.value)) and row.value > 0):
            raise ValueError(f"{row.metric} = {row.value}: not a rate")
        return row


@dataclass(frozen=True)
class Baseline:
    """Rows, and the file that they are from."""

    rows: tuple[Row, ...] = ()
    path: Path | None = None

    def healthy(self, kind: Kind) -> float | None:
        """The recorded value of exactly this kind."""
        return next((row.value for row in self.rows if row.key == (kind.metric, kind.size, kind.members, kind.device)), None)

    def foreign(self, devices: Iterable[str]) -> str:
        """A line where none of its rows is of these devices; empty where there is one, or no row at all."""
        found = sorted({name for name in devices if name})
        there = sorted({row.device for row in self.rows})
        if not there or not found or set(there) & set(found):
            return ""
        return f"{self.path or 'the baseline'} is of {', '.join(there)}, and these nodes have {', '.join(found)}: it does not count here"

    def merged(self, rows: Iterable[Row]) -> Baseline:
        """With these rows in the place of those of the same kind."""
        by_key = {row.key: row for row in (*self.rows, *rows)}
        return Baseline(tuple(by_key[key] for key in sorted(by_key)), self.path)

    def to_json(self) -> bytes:
        return to_json({"v": BASELINE_VERSION, "rows": [{**asdict(row), "versions": dict(row.versions)} for row in self.rows]})


def rows_of(samples: Mapping[Kind, Sequence[float]], *, when: float, versions: Mapping[str, str]) -> list[Row]:
    """What is to be recorded of healthy values, by kind."""
    found = []
    for kind, values in samples.items():
        middle = median(values)
        spread = round((max(values) - min(values)) / middle, 4)
        unit = UNITS[kind.metric]
        found.append(Row(kind.metric, kind.size, kind.members, kind.device, middle, unit, spread, len(values), when, dict(versions)))
    return found


def baseline_path(site: SiteConfig, environ: Mapping[str, str]) -> Path | None:
    """The file that counts; None where there is none. Raises ConfigError where the site's names a variable that is not set."""
    if site.preflight.baseline is not None:
        return expand(site.preflight.baseline, environ, where=f"site {site.name}", key="preflight.baseline")
    return next((path for folder in search_path(environ) if (path := folder / f"{site.name}{SUFFIX}").is_file()), None)


def record_path(site: SiteConfig, environ: Mapping[str, str]) -> Path:
    """Where a new one goes: the file that counts, else the first folder of site files that is there, apart from the installed one.

    Raises ConfigError.
    """
    found = baseline_path(site, environ)
    if found is not None:
        return found
    folders = search_path(environ)[:-1]
    folder = next((one for one in folders if one.is_dir()), None)
    if folder is None:
        where = ", ".join(str(one) for one in folders)
        raise ConfigError(
            f"no folder for a baseline: make one of {where}, or set preflight.baseline of the site", where=f"site {site.name}"
        )
    return folder / f"{site.name}{SUFFIX}"


def read_baseline(path: Path | None) -> Baseline:
    """No file: no rows. Raises ConfigError for one that is damaged, of a later release, or cannot be read."""
    if path is None:
        return Baseline()
    try:
        raw = json.loads(path.read_bytes())
        version = raw["v"]
        rows = tuple(Row.from_json(row) for row in raw["rows"]) if version == BASELINE_VERSION else ()
    except FileNotFoundError:
        return Baseline(path=path)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        problem = f"not a baseline ({one_line(f'{type(error).__name__}: {error}', 120)}): take it away, and record it again"
        raise ConfigError(problem, where=str(path)) from None
    if version != BASELINE_VERSION:
        raise ConfigError(
            f"format version {version}, and this release reads {BASELINE_VERSION}: take it away, and record it again", where=str(path)
        )
    return Baseline(rows, path)


def write_baseline(path: Path, disk: Disk, baseline: Baseline) -> None:
    """Raises OSError."""
    disk.write(path, baseline.to_json())
