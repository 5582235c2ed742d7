"""What an attempt's preflight found, as lines of the history of preflights (preflight/history.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurmtrain.errors import ConfigError, one_line
from slurmtrain.preflight.finding import Finding
from slurmtrain.preflight.history import Level, append, entries, history_path
from slurmtrain.resilience.composition import Composition


def remember(
    c: Composition,
    nodes: Sequence[str],
    findings: Iterable[Finding],
    *,
    level: Level,
    seconds: float,
    figures: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """A line for each of the nodes, in one write. What cannot be written is said, and keeps nobody from starting."""
    site, run = c.setup.site, c.run
    found = entries(
        nodes,
        findings,
        figures or {},
        t=c.clock.time(),
        level=level,
        seconds=seconds,
        by="attempt",
        site=site.name,
        job_id=c.allocation.job_id,
        run=run.name,
    )
    try:
        path = history_path(site, run.path.parent, c.environ)
        if path is not None:
            append(path, c.disk, found)
    except (OSError, ConfigError) as error:
        c.say(f"the history of preflights cannot be written: {one_line(str(error))}")
