"""Builds what a rank trains from model, plan and mesh. This module alone knows the order in which the pieces go together:

layouts of the local parameters (tp, pp) -> stages (for FSDP2 without memory), their attention over cp, their matmul -> recompute and
compile of layers -> the reducer (FSDP2 around layers and stages, or buckets) -> first values -> the runner of micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slurmtrain.config.model import ModelConfig
from slurmtrain.config.parallel import ZERO_BUBBLE
from slurmtrain.config.plan import Plan
from slurmtrain.config.training import TrainingConfig
from slurmtrain.models.initial import fill
from slurmtrain.parallel.axes import Axes, Mesh, axes_of
from slurmtrain.parallel.axis import Meter
from slurmtrain.parallel.batch import StepBatch
from slurmtrain.parallel.compile import compile_blocks
from slurmtrain.parallel.context import attention_over, cut, positions
from slurmtrain.parallel.data import Reducer, make_reducer
from slurmtrain.parallel.decoder import Stage
from slurmtrain.parallel.fp8 import matmul_for
from slurmtrain.parallel.parameters import LocalParameter, sum_partial, sum_tied
from slurmtrain.parallel.parts import Layout, stage_layouts
from slurmtrain.parallel.pipeline import Runner, make_runner
from slurmtrain.parallel.recompute import recompute

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Built:
    """A rank's share of the model, ready to train.

    `counts_loss`: whether this rank's loss and tokens count in sums over the world (it has the last stage, and is the first of its
    tensor-parallel group).
    """

    stages: tuple[Stage, ...]
    parameters: tuple[LocalParameter, ...]
    reducer: Reducer
    runner: Runner
    axes: Axes
    plan: Plan
    counts_loss: bool

    def forward_backward(self, batch: StepBatch, scale: float) -> Tensor:
        """One step's passes over this data-parallel rank's N = micro-batches x micro-batch sequences of T tokens.

        Afterwards every gradient is that of `scale` x the loss summed over the tokens of the global batch. Returns the sum of the
        loss over this rank's tokens (float64, not scaled).
        """
        self.reducer.start(batch.tokens_NT.shape[0] // self.plan.micro_batch)
        loss_sum = self.runner.train(self._cut(batch), scale)
        self.reducer.finish()
        sum_partial(self.parameters, self.axes.tp)
        sum_tied(self.parameters, self.axes.ends)
        return loss_sum

    def evaluate(self, batch: StepBatch) -> Tensor:
        """Sum of the loss over this rank's tokens (float64); nothing is changed."""
        return self.runner.evaluate(self._cut(batch))

    def valid_tokens(self, batch: StepBatch) -> Tensor:
        """Tokens of this rank's share that have a loss: each token on one rank alone when summed where `counts_loss`."""
        return self._cut(batch).valid_tokens()

    def publish(self) -> None:
        """After values were changed (loaded, updated): what the next forward pass uses follows."""
        self.reducer.publish()

    def _cut(self, batch: StepBatch) -> StepBatch:
        cp = self.axes.cp
        return batch if cp is None else batch.map(lambda x: cut(x, cp.size, cp.index, self.plan.cp_mode))


def build(
    model: ModelConfig,
    plan: Plan,
    mesh: Mesh,
    training: TrainingConfig,
    *,
    seed: int,
    device: torch.device,
    meter: Meter | None = None,
) -> Built:
    """Make this rank's stages with their first values."""
    axes = axes_of(mesh, meter or Meter(device, active=False))
    pp_index, tp_index = mesh.index("pp"), mesh.index("tp")
    layouts: dict[str, Layout] = {}
    stages: list[Stage] = []
    for number in plan.stages_of(pp_index):
        mine = _layouts(model, plan, number, tp_index)
        assert not set(mine) & set(layouts), f"two stages of one rank share names: {sorted(set(mine) & set(layouts))}"
        layouts |= mine
        stages.append(_stage(model, plan, number, mine, axes, training, device))
    for stage in stages:
        recompute(stage, training.recompute, training.recompute_every)
        compile_blocks(stage, training.compile)
    reducer, held = make_reducer(stages, layouts, plan, axes, training, device)
    _prepare(stages, plan, axes, training.sequence_length, device)
    parameters = _local_parameters(layouts, held, reducer)
    _first_values(parameters, model, seed)
    reducer.publish()
    boundary = (training.sequence_length // (plan.cp * plan.tp), plan.micro_batch, model.hidden)
    runner = make_runner(
        stages,
        plan,
        axes.pp,
        boundary=boundary,
        dtype=DTYPES[training.dtype],
        device=device,
        before_backward=reducer.before_backward,
    )
    last = len(plan.stages) - 1 in plan.stages_of(pp_index)
    return Built(tuple(stages), parameters, reducer, runner, axes, plan, last and tp_index == 0)


def _layouts(model: ModelConfig, plan: Plan, number: int, tp_index: int) -> dict[str, Layout]:
    last = number == len(plan.stages) - 1
    return stage_layouts(model, plan.stages[number], first=number == 0, last=last, index=tp_index, size=plan.tp)


def _stage(
    model: ModelConfig, plan: Plan, number: int, layouts: Mapping[str, Layout], axes: Axes, training: TrainingConfig, device: torch.device
) -> Stage:
    """A stage without values; FSDP2 wraps it before it has memory."""
    sharded = plan.dp_mode in ("zero2", "fsdp") and axes.dp_cp is not None
    with torch.device("meta" if sharded else device):
        return Stage(
            model,
            plan.stages[number],
            layouts,
            first=number == 0,
            last=number == len(plan.stages) - 1,
            tp=axes.tp,
            matmul=matmul_for(training.matmul, axes),
            attend=attention_over(axes.cp, plan.cp_mode, length=training.sequence_length, window=model.window),
            loss_chunk_tokens=training.loss_chunk_tokens,
            z_loss=training.z_loss,
            overlap=plan.pp == 1 or plan.schedule not in ZERO_BUBBLE,
        )


def _prepare(stages: Sequence[Stage], plan: Plan, axes: Axes, length: int, device: torch.device) -> None:
    """The positions that this rank has of each sequence."""
    here = positions(length, plan.cp, 0 if axes.cp is None else axes.cp.index, plan.cp_mode).to(device)
    for stage in stages:
        stage.prepare(here)


def _local_parameters(layouts: Mapping[str, Layout], held: Mapping[str, Layout], reducer: Reducer) -> tuple[LocalParameter, ...]:
    """The stages' parameters with their parts, in the order of the forward pass."""
    parameters = []
    for name, layout in layouts.items():
        share = held[name]
        decays = len(layout.shape) > 1
        parameters.append(LocalParameter(name, reducer.holders[name], share.parts, share.owned, decays, layout.copies, layout.tied))
    return tuple(parameters)


def _first_values(parameters: Sequence[LocalParameter], model: ModelConfig, seed: int) -> None:
    """What is in no part (padding) is zero and stays so, because its gradient is."""
    for parameter in parameters:
        tensor = parameter.tensor
        with torch.no_grad():
            tensor.zero_()
        for part in parameter.parts:
            fill(tensor, part, model, seed)
