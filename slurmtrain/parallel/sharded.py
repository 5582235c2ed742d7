"""zero2 and fsdp: torch's FSDP2 over the local tensors, each block a unit, the rest of the stage one more.

Gradients are reduce-scattered after every backward pass and add up in shards, as the modes promise: the whole gradient of more than a
block exists only where a pipeline interleaves micro-batches. With copies of the shards (HSDP) these are summed in the last pass alone.
zero2 keeps the weights whole from a step's first forward to its last backward; so does a pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from slurmtrain.parallel.axes import Axes
from slurmtrain.parallel.axis import Axis, Meter, all_gather_single, reduce_scatter_single
from slurmtrain.parallel.replicas import InModule


class Sharded:
    """A Reducer. Parameters that have no memory yet get it, of this rank's rows alone."""

    def __init__(
        self,
        stages: Sequence[nn.Module],
        axes: Axes,
        device: torch.device,
        *,
        dtype: torch.dtype,
        wire: torch.dtype,
        zero2: bool,
        keep: bool,
    ) -> None:
        self._stages: Sequence[Any] = stages
        self._zero2, self._keep = zero2, keep
        mesh = _device_mesh(axes, device)
        for stage in stages:
            _shard(stage, mesh, axes, device, dtype=dtype, wire=wire, keep=keep or zero2)
            if any(p.is_meta for p in stage.parameters()):
                stage.to_empty(device=device)
        self.holders = {name: InModule(p) for stage in stages for name, p in stage.named_parameters()}

    def start(self, passes: int) -> None:  # noqa: ARG002 each is reduced
        for holder in self.holders.values():
            holder.parameter.grad = None

    def before_backward(self, last: bool) -> None:  # noqa: FBT001 the runner's callback
        for stage in self._stages:
            stage.set_requires_all_reduce(last)
            if self._zero2 and not self._keep:
                stage.set_reshard_after_backward(last)

    def finish(self) -> None:
        for holder in self.holders.values():
            holder.fill()

    def publish(self) -> None:
        """Weights that a forward pass without a backward one left whole are gathered anew."""
        for stage in self._stages:
            for module in stage.modules():
                if hasattr(module, "reshard"):
                    module.reshard()


def _device_mesh(axes: Axes, device: torch.device) -> Any:
    """Of the shard group, or [copies, shard group]."""
    from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415  a second of imports that buckets do not need

    assert axes.shard is not None
    if axes.replicate is None:
        return DeviceMesh.from_group(axes.shard.group, device.type, mesh_dim_names=("shard",))
    assert axes.dp_cp is not None
    mine = torch.tensor([dist.get_process_group_ranks(axes.shard.group)], device=device)
    ranks = axes.dp_cp.all_gather(mine).unique(dim=0).cpu()
    assert ranks[:, axes.shard.index].tolist() == dist.get_process_group_ranks(axes.replicate.group)
    groups = [axes.replicate.group, axes.shard.group]
    return DeviceMesh.from_group(groups, device.type, mesh=ranks, mesh_dim_names=("replicate", "shard"))


def _shard(stage: Any, mesh: Any, axes: Axes, device: torch.device, *, dtype: torch.dtype, wire: torch.dtype, keep: bool) -> None:
    """`fully_shard` each block, then the stage; gradients are summed, not averaged. `keep`: weights stay whole after the forward."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: PLC0415  as above

    assert axes.shard is not None
    low = None if dtype == torch.float32 else dtype
    # Gradients add up in the policy's reduce_dtype; what is less precise on the wire alone is `Scatter`'s.
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for part in (*stage.layers.values(), stage):
        # The stage's own weights are needed again as soon as its forward pass ends: resharding them would save nothing.
        reshard = not keep and part is not stage
        sharded: Any = fully_shard(part, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum
        sharded.set_custom_all_gather(Gather(axes.shard, device))
        sharded.set_custom_reduce_scatter(Scatter(axes.shard, device, wire))


class _Allocates:
    """What FSDP2 asks of a collective besides the call. On a CPU the calls block, so that their time is exposed and metered."""

    def __init__(self, axis: Axis, device: torch.device) -> None:
        self._name = axis.name
        self._meter = axis.meter if device.type == "cpu" else Meter(device, active=False)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class Gather(_Allocates):
    """FSDP2's all-gather."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, *, async_op: bool) -> Any:
        with self._meter.time(self._name):
            return all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)


class Scatter(_Allocates):
    """FSDP2's reduce-scatter of fp32 gradients, in `wire` on the way."""

    def __init__(self, axis: Axis, device: torch.device, wire: torch.dtype) -> None:
        super().__init__(axis, device)
        self._wire = wire

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, *, op: Any) -> None:
        assert op == dist.ReduceOp.SUM
        sent = input_tensor.to(self._wire)
        received = output_tensor if sent is input_tensor else sent.new_empty(output_tensor.shape)
        with self._meter.time(self._name):
            reduce_scatter_single(received, sent, group=group)
        if received is not output_tensor:
            output_tensor.copy_(received)
