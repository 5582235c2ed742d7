"""Losses far above those before them: the z-score over a window of steps, z = (loss - mean) / standard deviation of the window (of the
whole window, not of a sample; Knuth's two passes, sums exact by `fsum`). Pure.

>>> zscore(16.0, [8.0, 12.0, 8.0, 12.0]), zscore(4.0, [8.0, 12.0]), zscore(9.0, [8.0, 8.0])
(3.0, -3.0, None)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence


def zscore(loss: float, before: Sequence[float]) -> float | None:
    """None where nothing was before, or all of it was the same."""
    if not before:
        return None
    mean = math.fsum(before) / len(before)
    variance = math.fsum((one - mean) ** 2 for one in before) / len(before)
    return (loss - mean) / math.sqrt(variance) if variance > 0 else None


class Spikes:
    """Watches the losses of steps that were made. `limit`: z-scores above it are spikes, 0: none are; `window`: steps.

    Nothing is a spike before the window is full. A spike does not enter it: what is not trained on sets no standard.
    """

    def __init__(self, limit: float, window: int) -> None:
        self._limit, self._last = limit, deque[float](maxlen=window)

    def height(self, loss: float) -> float | None:
        """The z-score of a loss that is a spike; None for any other."""
        if not self._limit or len(self._last) < (self._last.maxlen or 0):
            return None
        z = zscore(loss, self._last)
        return z if z is not None and z > self._limit else None

    def take(self, loss: float) -> None:
        """A step was made."""
        if self._limit:
            self._last.append(loss)

    def state(self) -> list[float]:
        """Plain values for a checkpoint, oldest first."""
        return list(self._last)

    def restore(self, losses: Iterable[float]) -> None:
        """Go on from a checkpoint's values; of more than the window the newest count."""
        self._last.clear()
        self._last.extend(losses)
