"""Sections of the job file about the training itself: length, numerics, optimiser, evaluation, metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from slurmtrain.config.base import Fraction, Frozen, NonNegative, NonNegativeFloat, Positive, PositiveFloat
from slurmtrain.config.values import Line

Dtype = Literal["fp32", "bf16", "fp16"]
LARGEST_SCALE = 2.0**64
"""Gradients that stay finite at any loss scale are zeros: doubling must end before the scale itself is infinite."""


class LossScale(Frozen):
    """Dynamic scaling of the loss in fp16: halved by a step that overflows, doubled after `growth_steps` that do not."""

    initial: PositiveFloat = 65536.0
    growth_steps: Positive = 2000
    minimum: PositiveFloat = 1.0
    """An overflow at this scale ends the run: the gradients themselves are not finite."""


class BatchRamp(Frozen):
    """A global batch that grows from `start` by `increment` to training.global_batch, evenly over `samples` samples."""

    start: Positive
    increment: Positive
    samples: Positive


class TrainingConfig(Frozen):
    """Length, size and numerics of the training."""

    steps: NonNegative
    """0: the first values are saved, and nothing is trained."""
    sequence_length: Positive
    global_batch: Positive
    """Sequences per step, over the whole world."""
    micro_batch: Positive = 1
    """Sequences per forward pass of one rank."""
    batch_ramp: BatchRamp | None = None
    seed: NonNegative = 1234
    clip_norm: PositiveFloat = 1.0
    clip_norm_type: Literal["2", "1", "inf"] = "2"
    """Which norm of the gradients clip_norm bounds."""
    dtype: Dtype = "fp32"
    """Of matrices, activations and their gradients; weights are kept in fp32 besides, and summed in `reduce_dtype`."""
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    """Of gradients on their way between data-parallel ranks."""
    loss_scale: LossScale = Field(default_factory=LossScale)
    matmul: Literal["native", "fp8-emulated", "torchao-fp8"] = "native"
    """What multiplies in the linears of the layers."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations made again in the backward pass. selective: all but matrix products, attention and collectives."""
    recompute_every: Positive = 1
    """Every n-th layer is recomputed."""
    compile: Literal["off", "inductor", "aot_eager"] = "off"
    """torch.compile of each layer, with this backend."""
    loss_chunk_tokens: Positive = 1024
    """Tokens whose logits exist at a time."""
    z_loss: NonNegativeFloat = 0.0
    """Weight of the mean squared log-partition that is added to the loss (PaLM, section 5: 1e-4)."""
    ema_decay: Fraction | None = None
    """Keep an exponential moving average of the weights."""
    deterministic: bool = False
    """Deterministic kernels where there is a choice (slower on GPUs)."""


class OptimizerConfig(Frozen):
    """The optimiser and its learning rate."""

    name: Literal["adamw", "sgd", "adafactor", "muon"] = "adamw"
    lr: PositiveFloat = 3e-4
    min_lr: NonNegativeFloat = 0.0
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    momentum: Fraction = 0.0
    """Of sgd, and of muon (there 0 means its default, 0.95)."""
    weight_decay: NonNegativeFloat = 0.1
    """Applied to matrices and embeddings, never to norms and biases."""
    no_decay: tuple[Line, ...] = ()
    """More tensors without decay: shell patterns of their names, such as "embedding.*"."""
    schedule: Literal["cosine", "linear", "wsd", "inverse-sqrt", "constant"] = "cosine"
    warmup_steps: NonNegative = 0
    total_steps: Positive | None = None
    """Step at which the schedule has come down to min_lr; default: training.steps."""
    decay_steps: Positive | None = None
    """wsd: length of the decay that ends at total_steps; default: a tenth of total_steps."""


class EvaluationConfig(Frozen):
    """Token-weighted mean loss over held-out data."""

    sets: dict[str, Path] = Field(default_factory=dict)
    """Name to folder of tokens."""
    every_steps: Positive = 1000
    batches: Positive = 16
    """Global batches of each set; fewer where the set ends before."""
    first: bool = False
    """Also before the first step."""


class TargetConfig(Frozen):
    """A quality to reach: an event says at which step, after how many tokens, seconds and GPU-hours."""

    metric: Line = "loss"
    """`loss` (of training), or the name of an evaluation set."""
    below: PositiveFloat
    times: Positive = 1
    """Evaluations (or steps) in a row that must hold."""
    stop: bool = False
    """End the run there."""


class MetricsConfig(Frozen):
    """What is written besides the events."""

    tensorboard: bool = False
    """Event files in the run folder's `tensorboard/`."""
    wandb: Line | None = None
    """Project of Weights & Biases; a service that does not answer never stops a run."""
    flops_rule: Literal["palm", "full", "causal"] = "palm"
    peak_tflops: PositiveFloat | None = None
    """Of one device in the training's dtype; default: the hardware table's for the site's GPU. Without either no MFU is told."""
    profile: tuple[NonNegative, NonNegative] | None = None
    """First and last step of which each rank leaves a torch profiler trace in the run folder's `profile/`."""
