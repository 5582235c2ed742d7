"""Events on their way to programs that draw curves: each in a thread of its own, none ever a reason for a run to wait or to end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from slurmtrain.errors import one_line

_QUEUE = 10_000
_ALONGSIDE = ("loss", "grad_norm", "lr", "tokens", "scale", "step_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "hfu")
"""Fields of a step event that are drawn."""
Numbers = tuple[int, dict[str, float]]


class Writer(Protocol):
    """One such program. Anything may be raised: then it is not written to again."""

    def write(self, step: int, numbers: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def numbers_of(kind: str, fields: Mapping[str, Any]) -> list[Numbers]:
    """What is drawn of an event: (step, numbers by tag), the figures of the step before under that step.

    >>> numbers_of("step", {"step": 2, "loss": 5.5, "previous": {"step": 1, "data_s": 0.1, "wait_s": {"tp": 0.2}, "slowest": {"rank": 3}}})
    [(1, {'time/data_s': 0.1, 'wait/tp_s': 0.2}), (2, {'loss': 5.5})]
    >>> numbers_of("eval", {"step": 2, "set": "held-out", "eval_loss": 4.5, "tokens": 90})
    [(2, {'eval/held-out': 4.5})]
    """
    step = fields.get("step")
    if not isinstance(step, int):
        return []
    if kind == "eval":
        return [(step, _real({f"eval/{fields.get('set')}": fields.get("eval_loss")}))]
    if kind != "step":
        return []
    before = _before(fields.get("previous") or {})
    return [*before, (step, _real({name: fields.get(name) for name in _ALONGSIDE}))]


def _before(previous: Mapping[str, Any]) -> list[Numbers]:
    step = previous.get("step")
    if not isinstance(step, int):
        return []
    waits = {f"wait/{axis}_s": seconds for axis, seconds in previous.get("wait_s", {}).items()}
    plain = {f"time/{name}" if name.endswith(("_s", "_max")) else name: value for name, value in previous.items() if name != "step"}
    return [(step, _real({**plain, **waits}))]


def _real(numbers: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items() if isinstance(value, (int, float))}


class Background:
    """Opens a writer and feeds it in a daemon thread; one note when it fails, then silence. What it cannot keep up with is dropped."""

    def __init__(self, name: str, opened: Callable[[], Writer], note: Callable[[str], None]) -> None:
        self._name, self._opened, self._note = name, opened, note
        self._waiting: queue.Queue[Numbers | None] = queue.Queue(_QUEUE)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Pass an event on; returns at once."""
        for numbers in numbers_of(kind, fields):
            try:
                self._waiting.put_nowait(numbers)
            except queue.Full:
                return

    def close(self, timeout_s: float) -> None:
        """Write what waits, for at most that long."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            writer = self._opened()
            while (numbers := self._waiting.get()) is not None:
                writer.write(*numbers)
            writer.close()
        except Exception as error:  # noqa: BLE001 whatever a library raises, the run goes on
            self._note(f"{self._name} gets no more: {one_line(f'{type(error).__name__}: {error}')}")
            while self._waiting.get() is not None:
                pass
