"""A stage of torch's pipeline schedules with what torch 2.13's own lacks.

- Receive buffers live from the receive to their use; torch keeps those of all micro-batches for the whole run.
- Where weight gradients come apart from input gradients, torch sets `.grad` past the autograd engine: hooks after the
  accumulation of a gradient do not run, and FSDP2 adds micro-batches up in the parameters' dtype. Here both see every micro-batch.
- Gradients that are views are made contiguous before they are sent.
- The time in which the stage computes is measured.

Importing this module takes a second: it loads torch.distributed.pipelining.
"""

# ruff: noqa: FBT001, FBT002  the signatures are torch's

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage

from slurmtrain.parallel.axis import Meter

BUSY = "busy"
"""Name of the time in which a stage computes, or its gradients are reduced."""


class Chunks(PipelineStage):
    """Runs the micro-batches of one stage. `meter` may be replaced between steps."""

    meter: Meter

    def forward_one_chunk(
        self, fwd_chunk_id: int, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, save_forward_output: bool = True
    ) -> Any:
        with self.meter.time(BUSY):
            output = super().forward_one_chunk(fwd_chunk_id, args, kwargs, save_forward_output)
        _release(self.args_recv_info[fwd_chunk_id])
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False) -> None:
        with self.meter.time(BUSY):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        gradients = self.bwd_cache[bwd_chunk_id]
        self.bwd_cache[bwd_chunk_id] = tuple(g if g is None else g.contiguous() for g in gradients)
        _release(self.grad_recv_info[bwd_chunk_id])

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        groups = self.backward_state[bwd_chunk_id][1] or ()  # the first stage has none: its backward pass is an ordinary one
        nodes = [node for group in groups for node in group["params"]]
        assert len(nodes) == len(set(nodes)), "a parameter is used in several places with others: torch would count its gradient twice"
        with self.meter.time(BUSY):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
            if nodes:
                self._finish_weights([node.variable for node in nodes])

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        with self.meter.time(BUSY):
            super().perform_reduce_grad(grad_scale_factor)

    def _finish_weights(self, weights: Iterable[nn.Parameter]) -> None:
        """What the autograd engine does once a weight has its gradient."""
        for weight in weights:
            for hook in list((weight._post_accumulate_grad_hooks or {}).values()):
                hook(weight)
        if isinstance(self.submod, FSDPModule):
            for state in fully_shard.state(self.submod)._state_ctx.all_states:  # type: ignore[attr-defined]
                for group in state._fsdp_param_groups:
                    group.post_backward()

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        self._allocate(self.args_recv_info[fwd_chunk_id])
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        if not self.is_last:
            self._allocate(self.grad_recv_info[bwd_chunk_id])
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        super()._setup_forward_recv_info(num_microbatches, has_backward)
        _release(info for infos in self.args_recv_info.values() for info in infos)

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        super()._setup_backward_recv_info(num_microbatches)
        _release(info for infos in self.grad_recv_info.values() for info in infos)

    def _allocate(self, infos: Iterable[Any]) -> None:
        for info in infos:
            if not info.is_root_arg:
                info.buffer = torch.empty(info.tensor_meta.shape, dtype=info.tensor_meta.dtype, device=self.device)


def _release(infos: Iterable[Any]) -> None:
    for info in infos:
        info.buffer = None


def boundary_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """What a stage hands on, without memory."""
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)
