"""The one line of a Nagios plugin, and its exit code: for HealthCheckProgram, prolog and epilog. Pure.

| what was found, the first that fits | code | word |
|---|---|---|
| a node is not fit | 2 | CRITICAL |
| a node could not be looked at | 3 | UNKNOWN |
| something is worth a look | 1 | WARNING |
| nothing | 0 | OK |

The form is that of the Monitoring Plugins' guidelines (monitoring-plugins.org/doc/guidelines.html): text, a bar, figures as
label=value;warn;crit;min;max.
"""

from __future__ import annotations

from slurmtrain.errors import one_line
from slurmtrain.preflight.finding import Grade
from slurmtrain.preflight.report import Report
from slurmtrain.units import counted

CODES: dict[str, int] = {"OK": 0, "WARNING": 1, "CRITICAL": 2, "UNKNOWN": 3}
UNKNOWN = CODES["UNKNOWN"]
_ORDER: tuple[tuple[Grade, str], ...] = (("fail", "CRITICAL"), ("unknown", "UNKNOWN"), ("warn", "WARNING"))
_LIMIT = 1000


def plugin_line(report: Report) -> tuple[int, str]:
    """Exit code and line."""
    grades = {one.grade for one in report.findings}
    grade, word = next(((grade, word) for grade, word in _ORDER if grade in grades), ("ok", "OK"))
    return CODES[word], f"{_status(word, _words(report, grade))} | {_figures(report)}"


def trouble_line(text: str) -> str:
    """For whoever could not even look: a usage mistake, a file that cannot be read."""
    return _status("UNKNOWN", text)


def _status(word: str, text: str) -> str:
    return f"PREFLIGHT {word} - {one_line(text.replace('|', '/'), _LIMIT)}"


def _words(report: Report, grade: str) -> str:
    worst = [one for one in report.findings if one.grade == grade]
    if worst:
        more = len(report.findings) - 1
        return f"{worst[0].node}: {worst[0]}{f' (and {more} more)' if more else ''}"
    if report.cached and set(report.cached) == set(report.nodes):
        return f"{counted(len(report.nodes), 'node')} fit, looked at {max(report.cached.values()):.0f} s ago"
    return f"{counted(len(report.nodes), 'node')} fit"


def _figures(report: Report) -> str:
    count, warned = len(report.nodes), sum(one.grade == "warn" for one in report.findings)
    return f"nodes={count};;;0 fit={len(report.fit)};;;0;{count} warnings={warned};;;0 seconds={report.seconds:.2f}s;;;0"
