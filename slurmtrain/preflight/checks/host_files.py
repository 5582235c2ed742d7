"""Open files of the whole machine, close to the kernel's limit: then nobody can open one, a checkpoint's neither."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request

MOST = 0.9


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 as others of its kind
    used, most = facts["files_used"], facts["files_most"]
    if most and used > MOST * most:
        yield Trouble("fail", f"{used} of {most} files of the machine are open", "find who holds them (`lsof`), or raise fs.file-max")


CHECK = Check("host-files", "host", "the kernel's table of open files has room", judge)
