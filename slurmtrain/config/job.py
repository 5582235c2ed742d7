"""The job file: everything about a run that is not the site. `load.py` reads and checks it; `job.json` is it, resolved."""

from __future__ import annotations

from pydantic import Field

from slurmtrain.config.base import FORMAT_VERSION, Frozen, NonNegative, Positive
from slurmtrain.config.data import DataConfig
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.parallel import ParallelConfig
from slurmtrain.config.training import EvaluationConfig, MetricsConfig, OptimizerConfig, TargetConfig, TrainingConfig
from slurmtrain.config.values import ArrayRange, Duration, Environment, Line, RunName, SbatchExtra, Version, Word


class RunConfig(Frozen):
    """Name, code and interpreter of a run."""

    name: RunName
    """Also the job's name; default: the job file's, without .toml."""
    include: tuple[str, ...] = ()
    """Paths copied into code/ besides the files that git tracks, relative to the job file."""
    live: bool = False
    """Run the code where it is, not a copy."""


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
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    target: TargetConfig | None = None
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    slurm: SlurmConfig = Field(default_factory=SlurmConfig)
    environment: Environment = Field(default_factory=dict)
    """Variables of the ranks, verbatim; they win over the site's."""
    python: Line | None = None
    """Interpreter of the job; default: the site's, else the one that submits."""
