"""Builds what a rank trains from model, plan and mesh. This module alone knows the order in which the pieces go together:

layouts of the local parameters (tp, pp) -> stages (for FSDP2 without memory), their attention over cp, their matmul -> recompute and
compile of layers -> the reducer (FSDP2 around layers and stages, or buckets) -> first values -> the runner of micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from slurmtrain.parallel.data import DTYPES, Reducer, make_reducer
from slurmtrain.parallel.decoder import Stage
from slurmtrain.parallel.fp8 import matmul_for
from slurmtrain.parallel.parameters import LocalParameter, sum_partial, sum_tied
from slurmtrain.parallel.parts import Layout, stage_layouts
from slurmtrain.parallel.pipeline import Runner, make_runner
from slurmtrain.parallel.recompute import recompute


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
    recipe = _Recipe(model, plan, axes, training, device)
    numbers, tp_index = plan.stages_of(mesh.index("pp")), mesh.index("tp")
    layouts = {number: recipe.layouts(number, tp_index) for number in numbers}
    stages = [recipe.stage(number, layouts[number]) for number in numbers]
    for stage in stages:
        recompute(stage, training.recompute, training.recompute_every)
        compile_blocks(stage, training.compile)
    named = _by_name(layouts.values())
    reducer, held = make_reducer(stages, named, plan, axes, training, device)
    for stage in stages:
        stage.prepare(recipe.positions())
    parameters = _local_parameters(named, held, reducer)
    _first_values(parameters, model, seed)
    reducer.publish()
    runner = recipe.runner(stages, reducer)
    counts_loss = len(plan.stages) - 1 in numbers and tp_index == 0
    return Built(tuple(stages), parameters, reducer, runner, axes, plan, counts_loss)


@dataclass(frozen=True)
class _Recipe:
    """What every stage of a rank is made of."""

    model: ModelConfig
    plan: Plan
    axes: Axes
    training: TrainingConfig
    device: torch.device

    def layouts(self, number: int, tp_index: int) -> dict[str, Layout]:
        return stage_layouts(
            self.model, self.plan.stages[number], first=number == 0, last=self.is_last(number), index=tp_index, size=self.plan.tp
        )

    def is_last(self, number: int) -> bool:
        return number == len(self.plan.stages) - 1

    def stage(self, number: int, layouts: Mapping[str, Layout]) -> Stage:
        """A stage without memory; the reducer gives it some, in the right type, once it has wrapped it."""
        plan, axes, training = self.plan, self.axes, self.training
        with torch.device("meta"):
            return Stage(
                self.model,
                plan.stages[number],
                layouts,
                first=number == 0,
                last=self.is_last(number),
                tp=axes.tp,
                matmul=matmul_for(training.matmul, axes),
                attend=attention_over(axes.cp, plan.cp_mode, length=training.sequence_length, window=self.model.window),
                loss_chunk_tokens=training.loss_chunk_tokens,
                z_loss=training.z_loss,
                overlap=plan.pp == 1 or plan.schedule not in ZERO_BUBBLE,
            )

    def positions(self) -> Tensor:
        """The positions that this rank has of each sequence."""
        index = 0 if self.axes.cp is None else self.axes.cp.index
        return positions(self.training.sequence_length, self.plan.cp, index, self.plan.cp_mode).to(self.device)

    def runner(self, stages: Sequence[Stage], reducer: Reducer) -> Runner:
        length = self.training.sequence_length // (self.plan.cp * self.plan.tp)
        return make_runner(
            stages,
            self.plan,
            self.axes.pp,
            boundary=(length, self.plan.micro_batch, self.model.hidden),
            dtype=DTYPES[self.training.dtype],
            device=self.device,
            before_backward=reducer.before_backward,
        )


def _by_name(groups: Iterable[Mapping[str, Layout]]) -> dict[str, Layout]:
    """All parameters of a rank; of two stages of one rank none shares a name."""
    named: dict[str, Layout] = {}
    for group in groups:
        assert not set(group) & set(named), f"two stages of one rank share names: {sorted(set(group) & set(named))}"
        named |= group
    return named


def _local_parameters(layouts: Mapping[str, Layout], held: Mapping[str, Layout], reducer: Reducer) -> tuple[LocalParameter, ...]:
    """The stages' parameters with their parts, in the order of the forward pass."""
    parameters = []
    for name, layout in layouts.items():
        share, decays = held[name], len(layout.shape) > 1
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
