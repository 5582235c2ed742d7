"""The rate of failures that a run plans with: what the site's fault log has measured goes before what its file says."""

from __future__ import annotations

from slurmtrain.config.site import SiteConfig
from slurmtrain.telemetry.faultlog import measured_rate

WINDOW_DAYS = 90.0
"""Older faults say little about the machine of today."""


def with_measured_rate(site: SiteConfig, now: float) -> tuple[SiteConfig, str]:
    """The site with the log's rate as its own, and the line that says so; as it is, and no line, where the log does not say enough."""
    known = site.reliability
    if known.fault_log is None:
        return site, ""
    rate = measured_rate(known.fault_log, site.name, now - WINDOW_DAYS * 86_400)
    if rate is None or rate.per_node_day is None:
        return site, ""
    measured = known.model_copy(update={"failures_per_node_day": float(f"{rate.per_node_day:.3g}")})
    said = (
        f"{measured.failures_per_node_day:g} failures a node and day: {rate.faults} in {rate.node_days:,.0f} node-days of {known.fault_log}"
    )
    return site.model_copy(update={"reliability": measured}), said
