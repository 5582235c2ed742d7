"""What quotas leave of the shared folders: lfs on Lustre, mmlsquota on GPFS, quota elsewhere, or the site's own command (`store.space`).

A tool that is not there knows nothing, and that is no trouble; one that hangs, and a site's command that gives no answer, are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from slurmtrain.preflight.machine import CannotTellError, Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._limits import within
from slurmtrain.shell import RC_TIMED_OUT, Completed, Shell
from slurmtrain.store.space import Left, quotas

_LATE = 'a server of the file system may be down: see dmesg; quota = "off" in [storage] of the site leaves it unasked'


@dataclass
class _Asking:
    """A shell with one limit for all that it runs; remembers who did not answer."""

    shell: Shell
    limit_s: float
    late: list[str] = field(default_factory=list)

    def run(
        self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: str = ""
    ) -> Completed:
        if self.late:
            return Completed(tuple(argv), RC_TIMED_OUT, "", "")
        done = self.shell.run(argv, timeout_s=min(timeout_s, self.limit_s), env=env, cwd=cwd, stdin=stdin)
        if done.rc == RC_TIMED_OUT:
            self.late.append(argv[0])
        return done


def asked(request: Request) -> bool:
    return request.site.storage.quota != "off" and bool(request.shared)


def look(machine: Machine, request: Request) -> Facts:
    found = [_one(machine, request, folder) for folder in _places(machine, request)]
    return {"left": [one for each in found for one in each]}


def _places(machine: Machine, request: Request) -> list[Path]:
    """The first folder on each file system: the others there have the same quota."""
    places: dict[int, Path] = {}
    for name in request.shared:
        try:
            places.setdefault(machine.path(name).stat().st_dev, machine.path(name))
        except OSError:
            continue  # the source `shared` tells of it
    return list(places.values())


def _one(machine: Machine, request: Request, folder: Path) -> list[dict[str, Any]]:
    storage, shell = request.site.storage, _Asking(machine.shell, within(request) / 2)
    found = list(quotas(folder, cast(Shell, shell), storage))  # programs are run there, none is started
    if shell.late:
        raise CannotTellError(f"{shell.late[0]} did not answer in {shell.limit_s:g} s about {folder}", _LATE)
    if storage.quota_command is not None and not found:
        remedy = f"run `{storage.quota_command.replace('{folder}', str(folder))}` on the node: it should print BYTES FILES"
        raise CannotTellError(f"storage.quota_command told nothing of {folder}", remedy)
    return [_plain(folder, left) for left in found]


def _plain(folder: Path, left: Left) -> dict[str, Any]:
    """None: no limit."""
    bytes_, files = (None if math.isinf(amount) else int(amount) for amount in (left.bytes, left.files))
    return {"folder": str(folder), "bytes": bytes_, "files": files, "where": left.where}


SOURCE = Source("quota", look, _LATE, asked)
