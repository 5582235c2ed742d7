"""A node by itself, looked at without Slurm and without a launcher: for HealthCheckProgram, prolog and epilog."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from slurmtrain import __version__
from slurmtrain.cli.doors import Doors
from slurmtrain.cli.preflight_target import Target, request_of
from slurmtrain.preflight.answer import describe, node_name
from slurmtrain.preflight.asking import CheckResult
from slurmtrain.preflight.cache import recently_fit
from slurmtrain.preflight.history import Entry, Level, read_newest
from slurmtrain.preflight.judge import Expected, findings, judge
from slurmtrain.preflight.node import look, write_faults
from slurmtrain.preflight.report import Report, findings_of, passed


def here(target: Target, doors: Doors, *, only: tuple[str, ...], fresh: bool, history: Path | None) -> Report:
    """Look and judge. `fresh`: also where the node was fit a short while ago."""
    node, level = node_name(doors.env), _level(only)
    if not fresh and not only and history is not None:
        cached = _cached(read_newest(history), target, node, doors.clock.time(), _avoided(target, doors))
        if cached is not None:
            return Report(doors.clock.time(), target.site.name, level, (node,), cached={node: cached})
    began = doors.clock.monotonic()
    asked_t = doors.clock.time()
    shared = (target.root,) if target.setup is not None and target.root is not None else ()
    request = request_of(target, doors.env, asked_t, only=only, shared=shared)
    seen = look(request, doors.env, doors.clock)
    answer = describe(node, "", write_faults([Path(name) for name in request.shared]), doors.env)
    answers = {node: replace(answer, t=asked_t, facts=seen.facts, unknown=seen.unknown, seen=doors.clock.time())}
    expected = Expected((node,), "", __version__, ulimits=target.site.environment.ulimits, request=request)
    seconds = doors.clock.monotonic() - began
    result = CheckResult(tuple(judge(answers, expected)), answers, seconds, findings=tuple(findings(answers, expected)))
    found = tuple(findings_of(result))
    made = passed((node,), answers, found, request)
    return Report(doors.clock.time(), target.site.name, level, (node,), found, made, seconds)


def _level(only: tuple[str, ...]) -> Level:
    return "part" if only else "quick"


def _cached(history: list[Entry], target: Target, node: str, now: float, avoided: Collection[str]) -> float | None:
    """For how many seconds the node has been known as fit; None where it is to be looked at."""
    mine = [one for one in history if one.node == node and one.site == target.site.name]
    if not recently_fit(mine, [node], "quick", now, target.site.preflight.cache_s, avoided=avoided):
        return None
    return max(0.0, now - max(one.t for one in mine if one.ok and one.level != "part"))


def _avoided(target: Target, doors: Doors) -> Collection[str]:
    """Nodes that the run avoids."""
    from slurmtrain.resilience.exclude import read_excluded

    return () if target.setup is None else read_excluded(target.setup.run.exclude_json, doors.clock.time())
