"""[recovery] of the job file: what a run may do about faults by itself, and when something counts as one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slurmtrain.config.base import Frozen, NonNegative, NonNegativeFloat, Positive, PositiveFloat
from slurmtrain.config.values import Line


class HangConfig(Frozen):
    """After how many seconds without progress a rank hangs, by what it is doing. 0: never."""

    first_step_s: NonNegativeFloat = 1800.0
    """Until the first step of an attempt is done (compilation, first allocations of the communicators)."""
    step_s: NonNegativeFloat = 120.0
    """A step, at least; `step_factor` times the median of the recent ones where that is longer."""
    step_factor: PositiveFloat = 10.0
    load_s: NonNegativeFloat = 1800.0
    save_s: NonNegativeFloat = 3600.0
    eval_s: NonNegativeFloat = 3600.0
    data_s: NonNegativeFloat = 1800.0
    storage_s: NonNegativeFloat = 3600.0
    """How long the shared folder may stand still while ranks wait for it."""


class StragglerConfig(Frozen):
    """Ranks whose own computing takes longer than their peers'."""

    factor: PositiveFloat = 1.5
    """Times the median of the ranks."""
    steps: Positive = 20
    """For so many steps in a row."""
    exclude: bool = False
    """Treat the node as bad: the attempt ends, the next goes without it, where there are others."""


class NumericsConfig(Frozen):
    """What is done about losses and gradient norms that are not finite, or far above all before. All ranks decide alike.

    fp16's overflows are no faults while the loss scale can be lowered.
    """

    skip_steps: NonNegative = 0
    """Bad steps in a row that are left out, before anything else is tried: no update, no step of the schedule; the data go on."""
    rollbacks: NonNegative = 0
    """How often, in the life of the run, it may go back to its last good checkpoint; then it ends."""
    older_by: NonNegative = 0
    """Go back to a checkpoint at least so many steps older than the first bad step: a spike may have begun before it was seen."""
    skip_data: bool = False
    """After going back, leave out the samples between that checkpoint and the fault."""
    lr_factor: PositiveFloat = 1.0
    """After going back, multiply the learning rate, for `for_steps` steps."""
    for_steps: Positive = 100
    spike_zscore: NonNegativeFloat = 0.0
    """A loss so many standard deviations above the mean of the last `spike_window` steps is a fault, too; 0: none is."""
    spike_window: Annotated[int, Field(ge=2, le=10_000)] = 100

    @property
    def active(self) -> bool:
        """Whether anything but an end may come of a fault, or more than what is not finite is one."""
        return bool(self.skip_steps or self.rollbacks or self.spike_zscore)


class CorruptionConfig(Frozen):
    """Silent corruption: what data-parallel replicas hold must be equal bit for bit."""

    every_steps: NonNegative = 0
    """Compare parameters and moments so often, and before every save; 0: never."""


class RecoveryConfig(Frozen):
    """What a run may do about faults by itself."""

    in_place: bool = True
    """Start again in the same allocation, where enough good nodes are left; else Slurm is asked for a requeue."""
    elastic: bool = False
    """Go on with fewer nodes than asked, by less data parallelism, and with more again when they are there; the global batch stays."""
    min_nodes: Positive = 1
    """Of an elastic run."""
    no_progress: Positive = 3
    """Attempts in a row without a newer checkpoint that end the run, whatever their causes."""
    budgets: dict[Line, NonNegative] = Field(default_factory=dict)
    """Attempts that may end by a cause, without a newer checkpoint between them: {rank_crash = 5}; others keep the defaults."""
    backoff_s: NonNegativeFloat = 10.0
    """Pause after the second fault of a cause that may come from the code (the first is followed at once); doubled by each further one,
    up to `backoff_max_s`."""
    backoff_max_s: NonNegativeFloat = 600.0
    exclude_hours: PositiveFloat = 24.0
    """How long a node that failed is avoided."""
    hang: HangConfig = Field(default_factory=HangConfig)
    stragglers: StragglerConfig = Field(default_factory=StragglerConfig)
    numerics: NumericsConfig = Field(default_factory=NumericsConfig)
    corruption: CorruptionConfig = Field(default_factory=CorruptionConfig)


Continuation = Literal["requeue", "chain"]
"""requeue: the same job again. chain: the next link of an array of `links`, one at a time."""
