"""The job file: everything about a run that is not the site. `load.py` reads and checks it; `job.json` is it, resolved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from slurmtrain.config.base import FORMAT_VERSION, Frozen, NonNegative, Positive, PositiveFloat
from slurmtrain.config.data import DataConfig
from slurmtrain.config.entry import EntryConfig
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.parallel import ParallelConfig
from slurmtrain.config.recovery import Continuation, RecoveryConfig
from slurmtrain.config.training import EvaluationConfig, MetricsConfig, OptimizerConfig, TargetConfig, TrainingConfig
from slurmtrain.config.values import ArrayRange, Duration, Environment, Line, RunName, SbatchExtra, Spares, Version, Word


class RunConfig(Frozen):
    """Name, code and interpreter of a run."""

    name: RunName
    """Also the job's name; default: the job file's, without .toml."""
    include: tuple[str, ...] = ()
    """Paths copied into code/ besides the files that git tracks, relative to the job file."""
    live: bool = False
    """Run the code where it is, not a copy."""


class CheckpointConfig(Frozen):
    """When to save, how, what to keep, and how it is read back."""

    every_steps: NonNegative = 100
    """0: by time alone."""
    every_minutes: PositiveFloat | None = None
    """Saved as well when so much time has passed since the last save, by rank 0's clock alone."""
    interval: Literal["auto"] | None = None
    """auto: Daly's optimum from what saves cost and how often nodes fail, worked out again as the run goes; `every_steps` is 0 then."""
    keep: Positive = 3
    """Newest checkpoints kept; the newest that verifies is never removed."""
    keep_every_steps: Positive | None = None
    """A checkpoint of a multiple of this step stays for ever."""
    keep_every_hours: PositiveFloat | None = None
    """Of each such span of time the newest stays for ever."""
    keep_best: NonNegative = 0
    """Checkpoints kept for the lowest `best_metric`."""
    best_metric: Line | None = None
    """Name of an evaluation set, or "loss", the training's own."""
    mode: Literal["sync", "async"] = "sync"
    """async: training stands still only while the state is copied to memory; a process of its own writes it."""
    writers_per_node: Positive | None = None
    """Files that a node writes; default: the site's, else one a rank."""
    timeout_s: Positive = 1800
    """An asynchronous save that takes longer has failed."""
    verify: Literal["full", "sampled", "sizes"] = "full"
    """How much of what is read back is compared with its sums."""
    allow_nonfinite: bool = False
    """Save a state with infinities or NaNs, too."""
    local: bool = False
    """Save to each node's own disk (paths.scratch), with a copy on a partner node; every `flush_every`-th goes to the shared folder."""
    flush_every: Positive = 4

    @model_validator(mode="before")
    @classmethod
    def _by_time(cls, said: Any) -> Any:
        """Nobody has asked for steps where the interval is chosen."""
        return {"every_steps": 0, **said} if isinstance(said, dict) and said.get("interval") is not None else said


class SlurmConfig(Frozen):
    """What is asked of Slurm. Everything here may also be given on the command line."""

    nodes: Positive = 1
    """Nodes that the world uses; a range "8-10" in the file becomes nodes = 8, spares = 2."""
    spares: Spares = 0
    """auto: the number that gives most useful GPU-hours for each billed one; a number once the job is submitted."""
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
    continuation: Continuation = "requeue"
    links: Positive = 10
    """Of a chain: how many jobs the run may take, one after another."""
    template: Word | None = None
    """Name of an sbatch template; default: the site's."""
    extra: SbatchExtra = ()
    """More sbatch options, each as one word: "--mail-type=END"."""


OF_OUR_TRAINER = ("model", "data", "training", "optimizer", "parallel", "checkpoint", "evaluation", "target", "metrics")
"""Sections that say nothing to a script of the user's."""
if TYPE_CHECKING:
    _Model = ModelConfig
    _Data = DataConfig
    _Training = TrainingConfig
else:
    _Model, _Data, _Training = ModelConfig | None, DataConfig | None, TrainingConfig | None
_LEFT_OUT: Any = None


class JobConfig(Frozen):
    """The resolved job, of one of two forms: [entry], or all that our own trainer needs.

    `model`, `data` and `training` are there unless `entry` is: whoever may meet such a job asks for `entry` first.
    """

    v: Version = FORMAT_VERSION
    run: RunConfig
    entry: EntryConfig | None = None
    model: _Model = Field(default=_LEFT_OUT)
    data: _Data = Field(default=_LEFT_OUT)
    training: _Training = Field(default=_LEFT_OUT)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    target: TargetConfig | None = None
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    recovery: RecoveryConfig = Field(default_factory=RecoveryConfig)
    slurm: SlurmConfig = Field(default_factory=SlurmConfig)
    environment: Environment = Field(default_factory=dict)
    """Variables of the ranks, verbatim; they win over the site's."""
    python: Line | None = None
    """Interpreter of the job; default: the site's, else the one that submits."""
    preflight: Literal["off", "quick", "full"] = "quick"
    """Before each start of the world. quick: every node's health, in seconds; full: what nodes and links reach is measured, too; off: a
    node need only answer."""

    @classmethod
    def lacking(cls, values: Mapping[str, Any]) -> tuple[str, ...]:
        return () if "entry" in values else tuple(key for key in ("model", "data", "training") if key not in values)

    @property
    def steps(self) -> int | None:
        """Steps of the whole run; None: a script's, which does not say."""
        return self.training.steps if self.entry is None else self.entry.steps

    @property
    def tokens_per_step(self) -> int:
        """0: not known."""
        return self.training.global_batch * self.training.sequence_length if self.entry is None else 0
