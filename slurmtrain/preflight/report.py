"""What came of a preflight: one value, from which the table, JSON, Nagios' line, Prometheus' text and the history are made. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurmtrain.preflight.answer import NodeAnswer
from slurmtrain.preflight.asking import CheckResult
from slurmtrain.preflight.finding import OUT, Finding, Grade
from slurmtrain.preflight.history import Entry, Level, entries
from slurmtrain.preflight.registry import checks_for
from slurmtrain.preflight.request import Request

REPORT_VERSION = 1
NODE = "node"
"""Under which name stands what every start needs: an answer, the same folder and release, CPUs, memory, limits."""
_SILENT = "see whether the node can be reached, and `scontrol show node` for Slurm's word"
_PLACES: tuple[Grade, ...] = ("fail", "unknown", "warn", "ok")


@dataclass(frozen=True)
class Report:
    """`nodes`: all that were to be looked at; `passed`: by node and check, of those that were made, whether it keeps the node out;
    `figures`: what was measured, by node; `untested`: pairs that there was no time for; `notes`: what else a person should know;
    `cached`: nodes that were not looked at again, and for how many seconds they have been fit; `folder`: what was kept, empty: nothing.
    """

    t: float
    site: str
    level: Level
    nodes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    passed: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    seconds: float = 0.0
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    untested: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    cached: Mapping[str, float] = field(default_factory=dict)
    folder: str = ""

    @property
    def out(self) -> tuple[str, ...]:
        """Nodes that may not start."""
        bad = {one.node for one in self.findings if one.grade in OUT}
        return tuple(node for node in self.nodes if node in bad)

    @property
    def fit(self) -> tuple[str, ...]:
        bad = set(self.out)
        return tuple(node for node in self.nodes if node not in bad)

    @property
    def ok(self) -> bool:
        """Whether all may start."""
        return not self.out

    def of(self, node: str) -> list[Finding]:
        """What was found of a node, the worst first."""
        return sorted((one for one in self.findings if one.node == node), key=lambda one: _PLACES.index(one.grade))

    def entries(self, **about: str) -> list[Entry]:
        """For the history, of the nodes that were looked at now. `about`: by, job_id, run."""
        seen = [node for node in self.nodes if node not in self.cached]
        return entries(seen, self.findings, self.figures, t=self.t, level=self.level, seconds=self.seconds, site=self.site, **about)

    def to_json(self) -> dict[str, Any]:
        bad = set(self.out)
        return {
            "v": REPORT_VERSION,
            "t": self.t,
            "site": self.site,
            "level": self.level,
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            "nodes": [
                {
                    "node": node,
                    "ok": node not in bad,
                    "findings": [{key: value for key, value in one.to_json().items() if key != "node"} for one in self.of(node)],
                    "passed": dict(self.passed.get(node, {})),
                    "figures": dict(self.figures.get(node, {})),
                    "fit_since_s": self.cached.get(node),
                }
                for node in self.nodes
            ],
            "untested": [list(pair) for pair in self.untested],
            "notes": list(self.notes),
            "folder": self.folder or None,
        }


def findings_of(result: CheckResult) -> Iterator[Finding]:
    """All that a check of the nodes found: what every start needs under the name `node`, then what the checks of health say."""
    health = {(one.node, str(one)) for one in result.findings}
    for fault in result.faults:
        if fault.node not in result.answers:
            yield Finding(fault.node, NODE, "unknown", fault.problem, _SILENT)
        elif (fault.node, fault.problem) not in health:
            yield Finding(fault.node, NODE, "fail", fault.problem)
    for node, why in result.late.items():
        yield Finding(node, NODE, "unknown", why, _SILENT)
    yield from result.findings


def passed(
    nodes: Sequence[str],
    answers: Mapping[str, NodeAnswer],
    findings: Sequence[Finding],
    request: Request,
    *,
    of_all: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, dict[str, bool]]:
    """By node and check, of those that were made: of a node without an answer only that there is none. `of_all`: checks that were made of
    several nodes together, with these nodes.
    """
    checks = checks_for(request)
    waiting: dict[str, list[str]] = {}
    for check in checks:
        waiting.setdefault(check.source, []).append(check.name)
    found = {node: {NODE: True, **({check.name: True for check in checks} if node in answers else {})} for node in nodes}
    for name, several in (of_all or {}).items():
        for node in several:
            found[node][name] = True
    names = {check.name for check in checks} | set(of_all or {})
    for one in findings:
        if one.grade in OUT and one.node in found:
            of_source = [] if one.check in names else waiting.get(one.check, [])
            found[one.node] |= dict.fromkeys(of_source or [one.check], False)
    return found
