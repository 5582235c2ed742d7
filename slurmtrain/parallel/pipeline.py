"""One step's forward and backward passes: over micro-batches in turn, or as a 1F1B pipeline (torch.distributed.pipelining)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from slurmtrain.parallel.decoder import Stage

Backward = Callable[[int], None]
"""Called with the number of the micro-batch before its backward pass."""


class Schedule(Protocol):
    """Runs all micro-batches of a step."""

    def run(self, tokens_NT: Tensor, labels_NT: Tensor) -> Tensor:
        """Forward and backward of N = micro-batches x micro-batch sequences.

        Returns the sum of the loss over this rank's tokens, float64; zero on a stage that is not the last.
        """


class InTurn:
    """No pipeline: micro-batches one after another."""

    def __init__(self, stage: Stage, microbatches: int, scale: float, before_backward: Backward) -> None:
        self._stage, self._microbatches, self._scale = stage, microbatches, scale
        self._before_backward = before_backward

    def run(self, tokens_NT: Tensor, labels_NT: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=tokens_NT.device)
        pairs = zip(tokens_NT.chunk(self._microbatches), labels_NT.chunk(self._microbatches), strict=True)
        for number, (tokens_BT, labels_BT) in enumerate(pairs):
            self._before_backward(number)
            loss = self._stage.loss_sum(self._stage(tokens_BT), labels_BT)
            (loss * self._scale).backward()
            total += loss.detach()
        return total


@dataclass(frozen=True)
class Place:
    """Where a stage stands: its index, how many there are, their group, its device."""

    index: int
    count: int
    group: dist.ProcessGroup
    device: torch.device


class OneForwardOneBackward:
    """1F1B: one stage a rank. Shapes are given, so that no step is spent on finding them.

    `boundary_shape`: of what stages hand on for one micro-batch.
    """

    def __init__(self, stage: Stage, place: Place, *, microbatches: int, scale: float, boundary_shape: tuple[int, int, int]) -> None:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # noqa: PLC0415  a second of imports

        self._first, self._last = place.index == 0, place.index == place.count - 1
        self._stage, self._scale = stage, scale
        boundary = torch.empty(boundary_shape, device="meta", requires_grad=True)
        pipeline_stage = PipelineStage(
            stage, place.index, place.count, place.device, input_args=boundary, output_args=boundary, group=place.group
        )
        self._schedule = Schedule1F1B(pipeline_stage, microbatches, loss_fn=self._loss, scale_grads=False)
        self._total = torch.zeros((), dtype=torch.float64, device=place.device)

    def _loss(self, logits_TBV: Tensor, labels_BT: Tensor) -> Tensor:
        loss = self._stage.loss_sum(logits_TBV, labels_BT)
        self._total += loss.detach()
        return loss * self._scale

    def run(self, tokens_NT: Tensor, labels_NT: Tensor) -> Tensor:
        self._total = torch.zeros_like(self._total)
        inputs = (tokens_NT,) if self._first else ()
        target: dict[str, Any] = {"target": labels_NT} if self._last else {}
        try:
            self._schedule.step(*inputs, return_outputs=False, **target)
        except RuntimeError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None  # the stage wraps what went wrong into many lines about shapes
        return self._total
