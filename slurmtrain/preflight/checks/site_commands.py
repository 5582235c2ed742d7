"""The site's own checks, by the exit codes of Nagios' plugins (Monitoring Plugins' development guidelines): 0 ok, 1 warning, 2 critical.

3 is "unknown", and so is everything else: a program that is not there, or does not answer, has not looked.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Grade, Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.commands import asked

_GRADES: dict[int, Grade] = {1: "warn", 2: "fail"}


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    for name, one in facts["commands"].items():
        if one["rc"]:
            remedy = f"run it on the node: `{request.site.preflight.commands.get(name, name)}`"
            yield Trouble(_GRADES.get(one["rc"], "unknown"), one["said"] or f"exit code {one['rc']}", remedy, name)


CHECK = Check("site-command", "commands", "the site's own commands (preflight.commands) find nothing", judge, wanted=asked)
