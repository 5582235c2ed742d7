"""Forward passes of a pipeline without gradients, for evaluation: the same under every schedule and placement of stages.

All ranks move in step: in tick t stage s has micro-batch t - s, then one exchange hands every output on. So on each pair of ranks
sends and receives are posted together and in the same order, which no backend can turn into a deadlock, and a stage holds one
boundary tensor at a time. torch's own `schedule.eval` fails under the V-shaped schedules (2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from slurmtrain.config.plan import Plan
from slurmtrain.parallel.axis import Axis
from slurmtrain.parallel.batch import StepBatch


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """No gradients, no dropout; afterwards training mode, and no FSDP2 module left with gathered values that may grow old."""
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415  heavy

    stages = list(modules)
    for stage in stages:
        stage.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for stage in stages:
            stage.train()
            for module in stage.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()


@dataclass(frozen=True)
class ForwardOnly:
    """Of the stages of one rank, by their numbers; they receive [S, B, D] of a dtype."""

    stages: Mapping[int, nn.Module]
    plan: Plan
    pp: Axis
    boundary: tuple[int, int, int]
    dtype: torch.dtype
    device: torch.device

    @torch.no_grad()
    def loss_sum(self, batch: StepBatch, count: int) -> Tensor:
        """Sum of the loss over this rank's tokens in `count` micro-batches, float64; 0 where the last stage is elsewhere."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        pieces, last = batch.microbatches(count), len(self.plan.stages) - 1
        inputs: dict[int, Tensor] = {}
        for tick in range(count + last):
            outputs: dict[int, Tensor] = {}
            for number, stage in self._active(tick, count):
                piece = pieces[tick - number]
                outputs[number] = stage(inputs.get(number, piece.tokens_NT), **piece.extras())
            if last in outputs:
                total += outputs.pop(last)
            inputs = self._exchange(outputs, [number for number, _ in self._active(tick + 1, count) if number > 0])
        return total

    def _active(self, tick: int, count: int) -> list[tuple[int, nn.Module]]:
        """Stages of this rank that have a micro-batch in a tick, ascending."""
        return [(number, stage) for number, stage in self.stages.items() if 0 <= tick - number < count]

    def _exchange(self, outputs: Mapping[int, Tensor], receivers: list[int]) -> dict[int, Tensor]:
        """Hand outputs on to the stages after; gives what the stages of this rank get for the next tick."""
        inputs: dict[int, Tensor] = {}
        ops = []
        for number, output in outputs.items():
            if number + 1 in self.stages:
                inputs[number + 1] = output
            else:
                ops.append(self._op(dist.isend, output, number + 1))
        for number in receivers:
            if number not in inputs:
                inputs[number] = torch.empty(self.boundary, dtype=self.dtype, device=self.device)
                ops.append(self._op(dist.irecv, inputs[number], number - 1))
        for work in dist.batch_isend_irecv(ops) if ops else ():
            work.wait()
        return inputs

    def _op(self, kind: Callable[..., Any], tensor: Tensor, stage: int) -> dist.P2POp:
        return dist.P2POp(kind, tensor, group=self.pp.group, group_peer=self.plan.pp_index_of(stage))
