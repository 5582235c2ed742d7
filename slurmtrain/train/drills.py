"""Faults on purpose, as `faults.json` has them: what a rank does to itself, at which step. Read once; no file, no cost.

| kind | when | what |
|---|---|---|
| exit | before the forward pass | `os._exit(value)`, without a word |
| signal | before the forward pass | sends itself signal `value` |
| stop | before the forward pass | SIGSTOP |
| exception | before the forward pass | raises RuntimeError |
| memory | before the forward pass | asks for more than its own limit (RLIMIT_AS) has left: MemoryError |
| sleep | before the forward pass | stands still for `value` seconds |
| slow | before the forward pass of every step from this one on | `value` seconds longer |
| nan | after the backward pass | one element of its gradient is not a number |
| bitflip | after the update | bit `value` of the first element of its largest parameter turns over |

Each is met once in an attempt, at its step or the first after it that is made; of several of one kind a step meets one, so that two
`nan` are two bad steps.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from slurmtrain.clock import Clock
from slurmtrain.parallel.parameters import LocalParameter
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.faults import Fault, FaultKind, read_faults

MEMORY_LEFT_BYTES = 256 << 20
"""What a rank whose memory is to run out may still ask for, so that it can say so."""


class Drills:
    """The faults that one rank is to meet. `parameters`: its own."""

    def __init__(self, faults: Sequence[Fault], parameters: Sequence[LocalParameter], clock: Clock) -> None:
        self._left, self._parameters, self._clock = list(faults), parameters, clock
        self._slow_s = 0.0

    def before(self, step: int) -> None:
        """Before the forward pass of a step, where its time counts as computing."""
        while (fault := self._due("slow", step)) is not None:
            self._slow_s += fault.value
        asleep = self._due("sleep", step)
        if seconds := self._slow_s + (asleep.value if asleep is not None else 0.0):
            self._clock.sleep(seconds)
        for kind, deed in _BEFORE.items():
            if (fault := self._due(kind, step)) is not None:
                deed(fault)

    def gradients(self, step: int) -> None:
        """When this rank's gradients are there, before anybody looks at them."""
        if self._due("nan", step) is not None:
            grad = max((p.grad for p in self._parameters), key=Tensor.numel)
            grad[(0,) * grad.ndim] = torch.nan

    def after(self, step: int) -> None:
        """After the update."""
        if (fault := self._due("bitflip", step)) is not None:
            flip_bit(max((p.tensor for p in self._parameters), key=Tensor.numel), int(fault.value))

    def _due(self, kind: FaultKind, step: int) -> Fault | None:
        """The first of a kind that is due; it is not due again."""
        found = next((one for one in self._left if one.kind == kind and one.step <= step), None)
        if found is not None:
            self._left.remove(found)
        return found


def open_drills(run: RunDir, attempt: int, rank: int, parameters: Sequence[LocalParameter], clock: Clock) -> Drills | None:
    """What this rank is to meet in this attempt; None where that is nothing."""
    mine = [one for one in read_faults(run.faults_json) if one.rank == rank and one.attempt in {0, attempt}]
    return Drills(mine, parameters, clock) if mine else None


@torch.no_grad()
def flip_bit(tensor: Tensor, bit: int) -> None:
    """Turn over a bit of the first element of a tensor of fp32, counted from the lowest, in place."""
    bits, first = tensor.detach().view(torch.int32), (0,) * tensor.ndim
    bits[first] ^= 1 << bit if bit < 31 else -(1 << 31)


def _exit(fault: Fault) -> None:
    os._exit(int(fault.value))


def _signal(fault: Fault) -> None:
    os.kill(os.getpid(), int(fault.value))


def _stop(_: Fault) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _exception(fault: Fault) -> None:
    raise RuntimeError(f"drill: an exception on purpose at step {fault.step}")


def _memory(_: Fault) -> None:
    """Lower this process's limit to what it has and some more, then ask for ten times that."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_LEFT_BYTES
    with suppress(ValueError):  # a limit that is lower already
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    bytearray(10 * limit)
    raise MemoryError


_BEFORE: dict[FaultKind, Callable[[Fault], None]] = {
    "stop": _stop,
    "memory": _memory,
    "exception": _exception,
    "signal": _signal,
    "exit": _exit,
}
