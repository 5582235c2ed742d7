"""The ranks' interpreter starts on the node, has what they need, and sees the run's code."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.software import asked

_ABSENT = {"version": "", "there": False}


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    if facts["code"]:
        remedy = "the run's folder must be on a file system that all nodes see"
        yield Trouble("fail", f"the run's code cannot be seen: {facts['code']}", remedy, request.code)
    if "error" in facts:
        remedy = "name an interpreter that all nodes see by `python` in the job or python.interpreter in the site"
        yield Trouble("fail", f"it cannot be run: {facts['error']}", remedy, facts["python"])
        return
    absent = [name for name in request.packages if not facts["packages"].get(name, _ABSENT)["there"]]
    if absent:
        remedy = f"`{facts['python']} -m pip install {' '.join(absent)}`, or name another interpreter by `python`"
        yield Trouble("fail", f"it has no {', '.join(absent)}", remedy, facts["python"])


CHECK = Check("software", "software", "the interpreter of the ranks starts, has their packages, and sees the code", judge, wanted=asked)
