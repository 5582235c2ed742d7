"""The passes of one step over a rank's stages: micro-batches in turn, or a schedule of torch.distributed.pipelining.

| schedule | stages a rank | micro-batches n | paper |
|---|---|---|---|
| gpipe | 1 | any | arXiv 1811.06965 |
| 1f1b | 1 | n >= pp | arXiv 2006.09503 |
| interleaved | vp | a multiple of n // pp | arXiv 2104.04473 |
| looped-bfs | vp | any | arXiv 2211.05953 |
| interleaved-zero-bubble | vp | a multiple of n // pp | arXiv 2401.10241 |
| zbv | 2 | any | arXiv 2401.10241, section 6 |
| dualpipev | 2 | n >= 2 pp | arXiv 2412.19437 |

Gradients are sums, whatever the number of micro-batches: nothing here divides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from slurmtrain.config.parallel import ScheduleName
from slurmtrain.config.plan import Plan
from slurmtrain.errors import DataError
from slurmtrain.parallel.axis import Axis, Meter
from slurmtrain.parallel.batch import StepBatch
from slurmtrain.parallel.forward_only import ForwardOnly, evaluating

if TYPE_CHECKING:
    from slurmtrain.parallel.chunks import Chunks

BeforeBackward = Callable[[bool], None]
"""Called before each backward pass; True before the last of a step."""
Boundary = tuple[int, int, int]
"""[S, B, D] of what a stage hands on: S = T / tp positions, B = micro-batch, D = hidden."""
STEP = "step"

TORCH_NAMES: dict[ScheduleName, str] = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-zero-bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
SINGLE: tuple[ScheduleName, ...] = ("gpipe", "1f1b")
"""Schedules that take one stage, not a list."""


class Runner(Protocol):
    """Runs all micro-batches of a batch through this rank's stages."""

    def train(self, batch: StepBatch, scale: float) -> Tensor:
        """Forward and backward; gradients, of the sum of the loss times `scale`, are added to what is there.

        Returns the sum of the loss over this rank's tokens, unscaled, float64; 0 where the last stage is elsewhere.
        Raises DataError, before anything is sent, for a batch that does not fit.
        """

    def evaluate(self, batch: StepBatch) -> Tensor:
        """The same sum, forward only and without dropout. Collective over the pipeline; at any time, also before the first step."""

    def take_bubble(self) -> float | None:
        """Share of the last `train` in which this rank waited for other stages; None without a pipeline or a step.

        A rank that ends before the others waits for them after `train`: the largest share of the pipeline's ranks is the one
        to hold against `bubble.expected_bubble`. On a GPU call it only after the host has waited for the step.
        """


def make_runner(
    stages: Sequence[nn.Module],
    plan: Plan,
    pp: Axis | None,
    *,
    boundary: Boundary,
    dtype: torch.dtype,
    device: torch.device,
    before_backward: BeforeBackward,
) -> Runner:
    """The runner of a rank's stages, `plan.stages_of(pp index)` in this order.

    `boundary`, `dtype`: of what stages hand on. `before_backward` is for passes in turn; pipelines tell FSDP2 themselves.
    """
    assert len(stages) == len(plan.stages_of(0 if pp is None else pp.index))
    assert boundary[1] == plan.micro_batch
    if pp is None:
        return InTurn(stages, plan.micro_batch, device, before_backward)
    return Pipelined(stages, plan, pp, boundary=boundary, dtype=dtype, device=device)


def _count(batch: StepBatch, micro_batch: int) -> int:
    """Number of micro-batches."""
    sequences = batch.tokens_NT.shape[0]
    if sequences % micro_batch or not sequences:
        raise DataError(f"a batch of {sequences} sequences does not divide into micro-batches of {micro_batch}: give a multiple")
    return sequences // micro_batch


class InTurn:
    """No pipeline: micro-batches one after another, through all stages."""

    def __init__(self, stages: Sequence[nn.Module], micro_batch: int, device: torch.device, before_backward: BeforeBackward) -> None:
        self._stages, self._micro_batch, self._device = stages, micro_batch, device
        self._before_backward = before_backward

    def train(self, batch: StepBatch, scale: float) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        count = _count(batch, self._micro_batch)
        for number, piece in enumerate(batch.microbatches(count)):
            loss = self._loss(piece)
            self._before_backward(number == count - 1)
            (loss * scale).backward()
            total += loss.detach()
        return total

    def evaluate(self, batch: StepBatch) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        with evaluating(self._stages):
            for piece in batch.microbatches(_count(batch, self._micro_batch)):
                total += self._loss(piece)
        return total

    def take_bubble(self) -> float | None:
        return None

    def _loss(self, piece: StepBatch) -> Tensor:
        x = piece.tokens_NT
        for stage in self._stages:
            x = stage(x, **piece.extras())
        return x


class Pipelined:
    """A pipeline. Schedules are made for each number of micro-batches that comes and share this rank's stages."""

    def __init__(
        self, stages: Sequence[nn.Module], plan: Plan, pp: Axis, *, boundary: Boundary, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._plan, self._device = plan, device
        self._length = boundary[0] * plan.tp
        numbered = dict(zip(plan.stages_of(pp.index), stages, strict=True))
        self._first, self._last = 0 in numbered, len(plan.stages) - 1 in numbered
        self._forward_only = ForwardOnly(numbered, plan, pp, boundary, dtype, device)
        self._chunks = self._make_chunks()
        self._schedules: dict[int, Any] = {}
        self._scale, self._total = 1.0, torch.zeros((), dtype=torch.float64, device=device)
        self._meter: Meter | None = None

    def train(self, batch: StepBatch, scale: float) -> Tensor:
        count = self._check(batch)
        schedule = self._schedules.get(count) or self._schedules.setdefault(count, self._make_schedule(count))
        self._scale, self._total = scale, torch.zeros_like(self._total)
        self._meter = Meter(self._device)
        for chunks in self._chunks:
            chunks.meter = self._meter
        inputs = (batch.tokens_NT,) if self._first else ()
        target = {"target": batch.labels_NT} if self._last else {}
        with self._meter.time(STEP), _local_cause():
            schedule.step(*inputs, return_outputs=False, **target, **batch.extras())
        return self._total

    def evaluate(self, batch: StepBatch) -> Tensor:
        count = self._check(batch)
        with evaluating(self._forward_only.stages.values()):
            return self._forward_only.loss_sum(batch, count)

    def take_bubble(self) -> float | None:
        from slurmtrain.parallel.chunks import BUSY  # noqa: PLC0415  loads torch.distributed.pipelining

        if self._meter is None:
            return None
        taken, self._meter = self._meter.take(), None
        return max(0.0, 1.0 - taken[BUSY] / taken[STEP])

    def _check(self, batch: StepBatch) -> int:
        """Number of micro-batches. All ranks of a pipeline have the same batch, so that all refuse it together."""
        length = batch.tokens_NT.shape[1]
        if length != self._length:
            raise DataError(f"a batch of {length} tokens a sequence in a pipeline that was made for {self._length}: give that many")
        return _count(batch, self._plan.micro_batch)

    def _loss(self, loss_sum: Tensor, _labels_BT: Tensor) -> Tensor:
        self._total += loss_sum.detach()
        return loss_sum * self._scale

    def _make_schedule(self, count: int) -> Any:
        from torch.distributed.pipelining import schedules  # noqa: PLC0415  a second of imports

        make = getattr(schedules, TORCH_NAMES[self._plan.schedule])
        stages = self._chunks[0] if self._plan.schedule in SINGLE else self._chunks
        try:
            return make(stages, n_microbatches=count, loss_fn=self._loss, scale_grads=False)
        except ValueError as error:  # configuration checks refuse this
            words = " ".join(str(error).split())
            raise DataError(f"{self._plan.schedule} over {self._plan.pp} ranks: a batch makes {count} micro-batches: {words}") from None

    def _make_chunks(self) -> list[Chunks]:
        from slurmtrain.parallel.chunks import Chunks, boundary_tensor  # noqa: PLC0415  loads torch.distributed.pipelining

        here, last = self._forward_only, len(self._plan.stages) - 1
        boundary = boundary_tensor(here.boundary, here.dtype)
        tokens = boundary_tensor((self._plan.micro_batch, self._length), torch.int64)
        loss = boundary_tensor((), torch.float32)
        return [
            Chunks(
                stage,
                number,
                len(self._plan.stages),
                self._device,
                input_args=boundary if number else tokens,
                output_args=boundary if number < last else loss,
                group=here.pp.group,
            )
            for number, stage in here.stages.items()
        ]


@contextmanager
def _local_cause() -> Iterator[None]:
    """What went wrong in a stage, not torch's many lines around it: nor does it log the whole schedule."""
    log = logging.getLogger("torch.distributed.pipelining.schedules")
    log.addFilter(_nothing)
    try:
        yield
    except RuntimeError as error:
        cause: BaseException = error
        while isinstance(cause, RuntimeError) and "ailed to run" in str(cause) and cause.__cause__ is not None:
            cause = cause.__cause__
        raise cause from cause.__cause__  # its own, if it has one
    finally:
        log.removeFilter(_nothing)


def _nothing(_record: logging.LogRecord) -> bool:
    return False
