"""The job file: everything about a run that is not the site. `load.py` reads and checks it; `job.json` is it, resolved."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from slurmtrain.config.base import FORMAT_VERSION, Fraction, Frozen, NonNegative, NonNegativeFloat, Positive, PositiveFloat
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.values import ArrayRange, Duration, Environment, Line, RunName, SbatchExtra, Version, Word

AXES = ("tp", "cp", "ep", "dp", "pp")
"""Mesh axes, fastest first, in the default order of ranks."""


class RunConfig(Frozen):
    """Name, code and interpreter of a run."""

    name: RunName
    """Also the job's name; default: the job file's, without .toml."""
    include: tuple[str, ...] = ()
    """Paths copied into code/ besides the files that git tracks, relative to the job file."""
    live: bool = False
    """Run the code where it is, not a copy."""


class DataConfig(Frozen):
    """Where the tokens are."""

    path: Path
    """Folder made by `slurmtrain data build`; relative to the job file; absolute once resolved."""


class TrainingConfig(Frozen):
    """Length and size of the training."""

    steps: Positive
    sequence_length: Positive
    global_batch: Positive
    """Sequences per step, over the whole world."""
    micro_batch: Positive = 1
    """Sequences per forward pass of one rank."""
    seed: NonNegative = 1234
    clip_norm: PositiveFloat = 1.0
    dtype: Literal["fp32"] = "fp32"
    deterministic: bool = False
    """Deterministic kernels where there is a choice (slower on GPUs)."""


class OptimizerConfig(Frozen):
    """AdamW with linear warm-up and cosine decay."""

    lr: PositiveFloat = 3e-4
    min_lr: NonNegativeFloat = 0.0
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    """Applied to matrices and embeddings, never to norms."""
    warmup_steps: NonNegative = 0
    decay_steps: Positive | None = None
    """Step at which min_lr is reached; default: training.steps."""


class ParallelConfig(Frozen):
    """Degrees of parallelism; dp defaults to what is left of the world."""

    tp: Positive = 1
    pp: Positive = 1
    cp: Positive = 1
    ep: Positive = 1
    dp: Positive | None = None
    dp_mode: Literal["ddp", "fsdp"] = "ddp"
    order: tuple[str, ...] = AXES
    """Axes of the world, fastest-varying first."""

    @field_validator("order")
    @classmethod
    def _every_axis_once(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        if sorted(order) != sorted(AXES):
            raise ValueError(f"must name each axis once: {', '.join(AXES)}, in any order")
        return order


class CheckpointConfig(Frozen):
    """When to save, and what to keep."""

    every_steps: Positive = 100
    keep: Positive = 3
    """Newest checkpoints kept; the newest that verifies is never removed."""


class SlurmConfig(Frozen):
    """What is asked of Slurm. Everything here may also be given on the command line."""

    nodes: Positive = 1
    """Nodes that the world uses; a range "8-10" in the file becomes nodes = 8, spares = 2."""
    spares: NonNegative = 0
    time: Duration | None = None
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    reservation: Word | None = None
    constraint: Line | None = None
    nodelist: Word | None = None
    exclude: Word | None = None
    dependency: Word | None = None
    gpus_per_node: Positive | None = None
    """Part of a node (no --exclusive then); default: all the site's GPUs of a node."""
    array: ArrayRange | None = None
    """Segments of the run as an array of one at a time: "1-4%1"."""
    template: Word | None = None
    """Name of an sbatch template; default: the site's."""
    extra: SbatchExtra = ()
    """More sbatch options, each as one word: "--mail-type=END"."""


class JobConfig(Frozen):
    """The resolved job."""

    v: Version = FORMAT_VERSION
    run: RunConfig
    model: ModelConfig
    data: DataConfig
    training: TrainingConfig
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    slurm: SlurmConfig = Field(default_factory=SlurmConfig)
    environment: Environment = Field(default_factory=dict)
    """Variables of the ranks, verbatim; they win over the site's."""
    python: Line | None = None
    """Interpreter of the job; default: the site's, else the one that submits."""
