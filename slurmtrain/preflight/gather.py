"""All sources at once, each in a process of its own that may be given up: what hangs in the kernel can be killed by nobody.

A child is forked, looks, writes one JSON object into a pipe and is gone. One that is late is killed and not waited for; its source is
"unknown" and all the others have their facts. The process that forks has one thread, no MPI and no device.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from slurmtrain.clock import Clock
from slurmtrain.errors import one_line
from slurmtrain.preflight.machine import CannotTellError, Machine
from slurmtrain.preflight.parts import Source
from slurmtrain.preflight.request import Request

_BUG = "this is a fault of the check: report it, and leave the check out with preflight.skip of the site"


@dataclass(frozen=True)
class Gathered:
    """`facts` by source; of the sources that gave none `unknown`: (what was said, what to do)."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    unknown: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass
class _Child:
    source: Source
    pid: int
    end: int
    deadline: float
    said: bytes = b""


def gather(sources: Iterable[Source], machine: Machine, request: Request, *, clock: Clock, limit_s: float | None = None) -> Gathered:
    """What all sources see. `limit_s`: the most that any of them is waited for, whatever its own limit."""
    found = Gathered()
    children = [_start(source, machine, request, clock, limit_s) for source in sources]
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.end, selectors.EVENT_READ, child)
        while selector.get_map():
            _hear(selector, found, clock)
    return found


def _start(source: Source, machine: Machine, request: Request, clock: Clock, limit_s: float | None) -> _Child:
    ours, theirs = os.pipe()
    limit = source.timeout_s if limit_s is None else min(source.timeout_s, limit_s)
    pid = os.fork()
    if pid:
        os.close(theirs)
        os.set_blocking(ours, False)
        with suppress(OSError):  # both do it: neither knows who is first
            os.setpgid(pid, pid)
        return _Child(source, pid, ours, clock.monotonic() + limit)
    _be_the_child(source, machine, request, theirs)
    raise AssertionError("unreachable")


def _be_the_child(source: Source, machine: Machine, request: Request, end: int) -> None:
    """In the child: look, say it, be gone; in a process group of its own, with all that it starts."""
    code = 1
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        data = json.dumps(_said(source, machine, request)).encode()
        while data:
            data = data[os.write(end, data) :]
        code = 0
    finally:
        os._exit(code)


def _said(source: Source, machine: Machine, request: Request) -> dict[str, Any]:
    try:
        return {"facts": dict(source.look(machine, request))}
    except CannotTellError as error:
        return {"unknown": [error.said, error.remedy]}
    except Exception as error:  # noqa: BLE001 whatever it is, the node answers for its other sources
        return {"unknown": [one_line(f"{source.name}: {type(error).__name__}: {error}"), _BUG]}


def _hear(selector: selectors.BaseSelector, found: Gathered, clock: Clock) -> None:
    """Wait for the next word of a child, or the next deadline, and act on it."""
    waiting: list[_Child] = [key.data for key in selector.get_map().values()]
    left = min(child.deadline for child in waiting) - clock.monotonic()
    for key, _ in selector.select(max(0.0, left)):
        child: _Child = key.data
        with suppress(BlockingIOError):
            if part := os.read(child.end, 1 << 16):
                child.said += part
            else:
                _close(selector, child)
                _keep(found, child)
    for child in waiting:
        if child.end in selector.get_map() and clock.monotonic() >= child.deadline:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            _close(selector, child)
            found.unknown[child.source.name] = (f"{child.source.name}: no answer in time", child.source.late)


def _close(selector: selectors.BaseSelector, child: _Child) -> None:
    selector.unregister(child.end)
    os.close(child.end)
    with suppress(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)


def _keep(found: Gathered, child: _Child) -> None:
    try:
        said: Mapping[str, Any] = json.loads(child.said)
    except ValueError:
        found.unknown[child.source.name] = (f"{child.source.name}: its process died", _BUG)
        return
    if "facts" in said:
        found.facts[child.source.name] = dict(said["facts"])
    else:
        found.unknown[child.source.name] = (said["unknown"][0], said["unknown"][1])
