"""How long an order may still take."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from slurmtrain.clock import Clock

_LEAST_S = 0.01


class LateError(Exception):
    """An order has not come to its end in time."""


@dataclass(frozen=True)
class Deadline:
    """A moment of the monotonic clock."""

    clock: Clock
    at: float

    @classmethod
    def after(cls, clock: Clock, seconds: float) -> Deadline:
        return cls(clock, clock.monotonic() + seconds)

    def left_s(self) -> float:
        """Never less than 10 ms: for what is given a limit and takes none of 0."""
        return max(_LEAST_S, self.at - self.clock.monotonic())

    def delta(self, share: float = 1.0) -> timedelta:
        """A share of what is left, for torch."""
        return timedelta(seconds=max(_LEAST_S, share * self.left_s()))

    def check(self, what: str) -> None:
        """Raises LateError when it is over."""
        if self.clock.monotonic() >= self.at:
            raise LateError(f"{what} did not come to an end in time")
