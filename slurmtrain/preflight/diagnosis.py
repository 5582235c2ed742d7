"""What all the checks find in the answers of all nodes. Pure.

A source that could not be looked at is told once, under its own name, however many checks wait for it. A check that meets facts which it
does not understand is "unknown", as one that could not look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.errors import one_line
from slurmtrain.preflight.answer import NodeAnswer
from slurmtrain.preflight.finding import Finding, tolerated
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.registry import checks_for, sources_for
from slurmtrain.preflight.request import Request

_FOREIGN = "the node may run another release: install the same on all nodes, or report it"


def diagnose(answers: Mapping[str, NodeAnswer], request: Request) -> list[Finding]:
    """Findings that are not "ok", by node in the order of the answers, then by check. `tolerate` of the site turns what keeps a node out
    into a warning.
    """
    found = [*_unseen(answers, request)]
    for check in checks_for(request):
        facts = {node: {**a.facts[check.source], "seen": a.seen} for node, a in answers.items() if check.source in a.facts}
        for node, known in facts.items():
            found += _judged(check, node, known, request)
        found += _compared(check, facts, request)
    order = {node: place for place, node in enumerate(answers)}
    return sorted((tolerated(one, request.site.preflight.tolerate) for one in found), key=lambda one: order.get(one.node, len(order)))


def _unseen(answers: Mapping[str, NodeAnswer], request: Request) -> Iterator[Finding]:
    wanted = [source.name for source in sources_for(request)]
    for node, answer in answers.items():
        for source in wanted:
            if source in answer.unknown:
                said, remedy = answer.unknown[source]
                yield Finding(node, source, "unknown", said, remedy)
            elif source not in answer.facts:
                yield Finding(node, source, "unknown", "not looked at", _FOREIGN)


def _judged(check: Check, node: str, facts: Facts, request: Request) -> list[Finding]:
    try:
        return [Finding.of(node, check.name, trouble) for trouble in check.judge(facts, request)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return [Finding(node, check.name, "unknown", one_line(f"{type(error).__name__}: {error}", 120), _FOREIGN)]


def _compared(check: Check, facts: Mapping[str, Facts], request: Request) -> list[Finding]:
    try:
        return [Finding.of(node, check.name, trouble) for node, trouble in check.compare(facts, request)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        said = one_line(f"{type(error).__name__}: {error}", 120)
        return [Finding(node, check.name, "unknown", said, _FOREIGN) for node in facts]
