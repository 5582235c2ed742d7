"""Data parallelism: how gradients become sums over the ranks that read different samples (dp) or other parts of them (cp), and
who keeps which values.

| dp_mode | values | gradient sums | module |
|---|---|---|---|
| ddp | whole | whole | `replicas` |
| zero1 | whole in the module's dtype, own rows for the optimiser | own rows | `zero` |
| zero2 | own rows; whole during a step | own rows | `sharded` (FSDP2) |
| fsdp | own rows; whole while a block runs | own rows | `sharded` (FSDP2) |

Everything sums, nothing averages. Gradients of passes add up in fp32; on the way between ranks they have `training.reduce_dtype`.
bf16 there rounds each rank's share and each partial sum: an element is off by at most n 2^-9 of the sum of its n shares' magnitudes
(HSDP's second sum, over the copies of a shard, stays in fp32).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import nn

from slurmtrain.config.plan import Plan
from slurmtrain.config.training import TrainingConfig
from slurmtrain.parallel.axes import Axes
from slurmtrain.parallel.buckets import BUCKET_BYTES, Buckets
from slurmtrain.parallel.parameters import Holder
from slurmtrain.parallel.parts import Layout, shard_rows
from slurmtrain.parallel.replicas import Alone, WholeBucket
from slurmtrain.parallel.sharded import Sharded
from slurmtrain.parallel.zero import ShardBucket

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Reducer(Protocol):
    """`holders`: by name of the local parameter, in the order of the forward pass."""

    @property
    def holders(self) -> Mapping[str, Holder]: ...

    def start(self, passes: int) -> None:
        """Before a step of so many backward passes: gradients are zero."""

    def before_backward(self, last: bool) -> None:  # noqa: FBT001 the runner's callback
        """Runners without a pipeline call it before each backward pass."""

    def finish(self) -> None:
        """After the last pass: every holder's gradient is the sum over passes and ranks."""

    def publish(self) -> None:
        """After values changed (first values, load, optimiser): modules compute with them. Collective."""


def make_reducer(  # noqa: PLR0917 a door
    stages: Sequence[nn.Module],
    layouts: Mapping[str, Layout],
    plan: Plan,
    axes: Axes,
    training: TrainingConfig,
    device: torch.device,
    *,
    bucket_bytes: int = BUCKET_BYTES,
) -> tuple[Reducer, dict[str, Layout]]:
    """Wrap this rank's stages, whose parameters are fp32 or on the meta device. `layouts`: of all their parameters, by name.

    Returns the reducer and the layouts of what its holders have; of the ranks that have the same, the first alone counts it.
    """
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    assert len(names) == len(set(names)), "two stages of a rank have a parameter of the same name"
    assert set(names) == set(layouts), set(names) ^ set(layouts)
    dtype, wire = DTYPES[training.dtype], DTYPES[training.reduce_dtype]
    sharded = plan.dp_mode != "ddp" and axes.shard is not None
    held = {name: _held(layouts[name], axes, sharded=sharded) for name in names}
    if sharded and plan.dp_mode != "zero1":
        zero2 = plan.dp_mode == "zero2"
        return Sharded(stages, axes, device, dtype=dtype, wire=wire, zero2=zero2, keep=plan.pp > 1), held
    parameters = _with_memory(stages, dtype, device)
    if axes.dp_cp is None and dtype == torch.float32:
        return Alone(parameters), held
    if sharded:
        assert axes.shard is not None
        shards = partial(ShardBucket, shard=axes.shard, replicate=axes.replicate, dtype=dtype, wire=wire)
        return Buckets(parameters, shards, bucket_bytes), held
    return Buckets(parameters, partial(WholeBucket, axis=axes.dp_cp, dtype=dtype, wire=wire), bucket_bytes), held


def _held(layout: Layout, axes: Axes, *, sharded: bool) -> Layout:
    copies = axes.replicate if sharded else axes.dp_cp
    counted = layout.counted and (copies is None or copies.index == 0)
    if sharded:
        assert axes.shard is not None
        layout = shard_rows(layout, axes.shard.index, axes.shard.size)
    return replace(layout, counted=counted)


def _with_memory(stages: Sequence[nn.Module], dtype: torch.dtype, device: torch.device) -> dict[str, nn.Parameter]:
    """Parameters by name. Those on the meta device get memory in the dtype at once: fp32 besides is the buckets' masters alone."""
    for stage in stages:
        if any(p.is_meta for p in stage.parameters()):
            for parameter in stage.parameters():
                parameter.data = parameter.data.to(dtype)
            stage.to_empty(device=device)
    return {name: parameter for stage in stages for name, parameter in stage.named_parameters()}
