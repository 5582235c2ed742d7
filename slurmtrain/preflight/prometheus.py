"""A report as Prometheus' text format, for the textfile collector of the node exporter: replace the file as a whole. Pure.

(prometheus.io/docs/instrumenting/exposition_formats: a HELP and a TYPE line for each metric; backslash, quote and line end are escaped in
label values; a line end after the last line.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from slurmtrain.preflight.report import Report

_PREFIX = "slurmtrain_preflight"


def exposition(report: Report) -> str:
    """The whole file."""
    bad = set(report.out)
    every = {"site": report.site, "level": report.level}
    checks = [({"node": node, "check": name}, float(ok)) for node, made in report.passed.items() for name, ok in sorted(made.items())]
    figures = [({"node": n, "figure": name}, value) for n, known in report.figures.items() for name, value in sorted(known.items())]
    lines = [
        *_metric("node_ok", "1: the node may start.", [({"node": node}, float(node not in bad)) for node in report.nodes]),
        *_metric("ok", "0: this check keeps the node out, by what it found or because it could not look.", checks),
        *_metric("figure", "What was measured, in the unit of the figure's name.", figures),
        *_metric("time_seconds", "When the preflight ended, seconds since the epoch.", [(every, report.t)]),
        *_metric("duration_seconds", "How long it took.", [(every, report.seconds)]),
    ]
    return "".join(f"{line}\n" for line in lines)


def _metric(name: str, about: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> Iterator[str]:
    yield f"# HELP {_PREFIX}_{name} {about}"
    yield f"# TYPE {_PREFIX}_{name} gauge"
    for labels, value in samples:
        said = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{_PREFIX}_{name}{{{said}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
