"""What becomes of a step whose numbers went wrong: a state machine that knows no tensor, moved alike by all ranks.

| a step's loss or gradient norm | and | what happens |
|---|---|---|
| is finite, and the loss is no spike | | the update is made; the count of bad steps in a row begins anew |
| overflowed in fp16 | the loss scale can be lowered | no fault: `scaler` |
| is not finite, or the loss is a spike | at most `skip_steps` in a row were skipped, this one included | skip |
| | more | roll back, where fewer than `rollbacks` were made in the life of the run |
| | and none is left | end: NonFiniteError |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slurmtrain.config.recovery import NumericsConfig
from slurmtrain.errors import CheckpointError, one_line
from slurmtrain.store.plain import number
from slurmtrain.telemetry.interventions import Book, FaultCause, Rollback
from slurmtrain.train.spikes import Spikes

Verdict = Literal["skip", "rollback", "end"]
_KEY = "numerics"


@dataclass(frozen=True)
class Fault:
    """A step's numbers that went wrong. `text`: one line."""

    cause: FaultCause
    text: str


class Numerics:
    """`book`: what was done so far in the life of the run; `in_row`: bad steps in a row, the newest included; `began`: the first of them.

    >>> numerics = Numerics(NumericsConfig(skip_steps=1, rollbacks=1))
    >>> numerics.failed(7), numerics.failed(8), (numerics.began, numerics.good_until)
    ('skip', 'rollback', (7, 6))
    """

    def __init__(self, config: NumericsConfig, book: Book | None = None) -> None:
        self.config, self.book = config, book or Book()
        self._spikes = Spikes(config.spike_zscore, config.spike_window)
        self.in_row, self.began = 0, 0

    def spike(self, step: int, loss: float) -> Fault | None:
        """Whether a finite loss is a fault all the same. Changes nothing."""
        height = self._spikes.height(loss)
        if height is None:
            return None
        text = f"step {step}: loss {loss:g} is {height:.1f} standard deviations above the mean of {self.config.spike_window} steps"
        return Fault("spike", text)

    def passed(self, loss: float) -> None:
        """A step was made."""
        self._spikes.take(loss)
        self.in_row = self.began = 0

    def failed(self, step: int) -> Verdict:
        """A step had a fault: what happens now."""
        self.in_row += 1
        if self.in_row == 1:
            self.began = step
        if self.in_row <= self.config.skip_steps:
            self.book = self.book.with_skip()
            return "skip"
        return "rollback" if len(self.book.rollbacks) < self.config.rollbacks else "end"

    @property
    def good_until(self) -> int:
        """The newest step whose checkpoint may be gone back to: made before the fault began, and as old as the job asks."""
        return self.began - 1 - self.config.older_by

    def rollback(self, step: int, to: int, cause: str, span: tuple[int, int]) -> Rollback:
        """What a way back changes, of a fault that began at its step. `span`: positions of the data between the checkpoint and the fault,
        its step included.
        """
        wish = self.config
        return Rollback(
            step=step,
            began=step,
            to=to,
            cause=cause,
            lr_factor=wish.lr_factor,
            until=to + wish.for_steps if wish.lr_factor != 1.0 else 0,
            left_out=span if wish.skip_data else None,
        )

    def to_state(self) -> dict[str, Any]:
        """Plain values for a checkpoint; none where the job asks for nothing of this and nothing was ever done."""
        if not (self.config.active or self.book != Book()):
            return {}
        counts = {"skipped": self.book.skipped, "rollbacks": len(self.book.rollbacks)}
        return {_KEY: {"in_row": self.in_row, "began": self.began, "losses": self._spikes.state(), **counts}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's values; one that has none begins anew. The book stays: it is the run's, not the checkpoint's.

        Raises CheckpointError for values of another form.
        """
        told = state.get(_KEY, {})
        try:
            self.in_row, self.began = number(told.get("in_row", 0)), number(told.get("began", 0))
            self._spikes.restore(float(one) for one in told.get("losses", []))
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise CheckpointError(f"what the checkpoint tells of its losses is of another form: {one_line(str(error))}") from error
