"""The site file: what an administrator says about a cluster. Read by `load.py`; `site.json` is it, resolved."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from slurmtrain.config.base import FORMAT_VERSION, Fraction, Frozen, NonNegative, NonNegativeFloat, Positive, PositiveFloat
from slurmtrain.config.values import Duration, Environment, Line, RuleError, SbatchExtra, Ulimits, Version, Word

EARLY_S = 60
"""Slurm sends the notice of --signal up to this much early (sbatch's manual)."""
FAULT_FIELDS = ("node", "cause", "site", "job", "user", "attempt", "run", "detail")
"""What reliability.fault_command may name in braces."""
STRIPE_UNIT = 1 << 16
"""Stripes are multiples of it (lfs-setstripe's manual)."""


class SiteSlurm(Frozen):
    """How this cluster's Slurm wants to be asked."""

    clusters: tuple[Word, ...] = ()
    """ClusterName values that mean this site; shell patterns may be used: "alps-*"."""
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    time: Duration = "24:00:00"
    """Limit of a job whose file says none."""
    mpi: Word = "pmix"
    """Value of srun --mpi."""
    cpu_bind: Word | None = None
    """Value of srun --cpu-bind."""
    gpu_bind: Word | None = None
    """Value of srun --gpu-bind; "none" keeps all GPUs of a node visible to each rank."""
    gpus_option: str | None = "--gpus-per-node"
    """Option that asks for GPUs; empty string: the site has no GPU gres."""
    gpu_type: Word | None = None
    """Type in --gpus-per-node=TYPE:N."""
    exclusive: bool = True
    template: Word = "train"
    commands_on_nodes: bool = True
    """Whether scontrol can be called on compute nodes; without it nobody can ask for a requeue when the batch host is lost."""
    stop_notice_s: NonNegative = 300
    """--signal=B:USR2@this; bash alone hears it, up to 60 s early."""
    extra: SbatchExtra = ()
    """More sbatch options, each as one word."""


class SiteNode(Frozen):
    """One node."""

    gpus: Positive
    """GPUs, or ranks where there is none."""
    cpus_per_gpu: Positive = 1
    gpu: Line | None = None
    """Name in the hardware table."""
    memory_bytes: Positive | None = None
    nvlink_domain: Literal["node", "block", "pairs"] = "node"
    """node: all GPUs of a node; block: of `block_nodes` nodes; pairs: two GPUs each."""
    block_nodes: Positive = 1

    @model_validator(mode="after")
    def _domain_fits(self) -> SiteNode:
        if self.nvlink_domain == "block" and self.block_nodes == 1:
            raise RuleError('of a "block" domain must be 2 or more: how many nodes share NVLink?', item="block_nodes", value=1)
        if self.nvlink_domain != "block" and self.block_nodes != 1:
            problem = f'needs nvlink_domain = "block", not "{self.nvlink_domain}"'
            raise RuleError(problem, item="block_nodes", value=self.block_nodes)
        if self.nvlink_domain == "pairs" and self.gpus % 2:
            raise RuleError('must be even when nvlink_domain = "pairs"', item="gpus", value=self.gpus)
        return self


class SiteFabric(Frozen):
    """Network between nodes."""

    rendezvous_interface: Word | None = None
    """Interface of the store's address and of NCCL_/GLOO_SOCKET_IFNAME; default: the one that reaches the first node."""
    kind: Literal["infiniband", "roce", "slingshot", "ethernet", "loopback"] = "infiniband"
    nics_per_node: NonNegative = 0
    nic_gbps: NonNegative = 0
    """Of one NIC, gigabits per second and direction."""
    environment: Environment = Field(default_factory=dict)
    """NCCL_*, FI_*, UCX_* variables of the ranks."""


class SitePaths(Frozen):
    """Folders."""

    root: Path | None = None
    """Where runs live, on a file system that all nodes see; `~` and $VARIABLES are expanded."""
    scratch: Path | None = None
    """Node-local fast disk."""


class SiteStorage(Frozen):
    """The file system that runs live on."""

    writers_per_node: Positive | None = None
    """Checkpoint files that a node writes at a time; default: one a rank."""
    stripe_count: int | None = Field(default=None, ge=-1)
    """`lfs setstripe -c` of a checkpoint's folder, -1: all targets; default: as the folder above."""
    stripe_bytes: Positive | None = None
    quota: Literal["auto", "off"] = "auto"
    """auto: lfs, mmlsquota or quota is asked, whichever knows the folder."""
    quota_command: Line | None = None
    """Prints `BYTES FILES` that may still be written ("-": no limit); {folder} is replaced. Instead of `quota`."""
    purge_days: Positive | None = None
    """Files that nobody touched for so long are removed by the site."""

    @model_validator(mode="after")
    def _fits(self) -> SiteStorage:
        if self.stripe_bytes is not None and self.stripe_bytes % STRIPE_UNIT:
            raise RuleError(f"must be a multiple of {STRIPE_UNIT} (64 KiB), as lfs wants it", item="stripe_bytes", value=self.stripe_bytes)
        if self.quota == "off" and self.quota_command is not None:
            raise RuleError('asks for the quota, and quota = "off" says not to: leave one out', item="quota_command")
        return self


class SiteEnvironment(Frozen):
    """What happens in the batch script before the supervisor starts, and in every rank's environment."""

    modules: tuple[Line, ...] = ()
    """Loaded with `module load`, in this order."""
    set: Environment = Field(default_factory=dict)
    before: tuple[str, ...] = ()
    """Shell lines of the block `before`, as they are."""
    ulimits: Ulimits = Field(default_factory=dict)
    """Flag of bash's ulimit to value: {l = "unlimited"}; checked on every node."""


class SitePython(Frozen):
    """Interpreter and MPI."""

    interpreter: Line | None = None
    mpi4py_libmpi: Line | None = None
    """MPI4PY_LIBMPI: the site's MPI library for the ABI-stub wheel of mpi4py."""


class SiteReliability(Frozen):
    """How often nodes fail here, and what a failure costs: for `checkpoint.interval = "auto"` and `slurm.spares = "auto"`."""

    failures_per_node_day: PositiveFloat = 0.0065
    """Failures that end a job, for each node and day. Default: 6.5 in 1,000 node-days of Meta's RSC-1, 16,000 A100 (Kokolis et al.,
    arXiv 2410.21680); the same paper's RSC-2 has 2.34, Llama 3's run 3.8 (419 in 54 days of 2,048 nodes, arXiv 2407.21783)."""
    requeue_wait_s: NonNegativeFloat = 420.0
    """From the loss of a node to the next start of its job. Default: what Slurm's own defaults take where other nodes are free:
    SlurmdTimeout = 300, and cred_expire = 120 before a requeued job may start."""
    restart_s: PositiveFloat = 300.0
    """From a failure to the next step, in the same allocation. Default: the least of the 5 to 20 minutes of Kokolis et al."""
    wait_billed: Fraction = 1.0
    """Share of a waiting run's GPU-hours that counts as spent: 1 on a reservation; 0 where only what runs is charged."""
    fault_log: Path | None = None
    """A file on a file system that all nodes see, to which every end of an attempt is added as one line: node-days and faults of nodes.
    Whoever trains must be able to write to it, or to make it."""
    fault_command: Line | None = None
    """Run for each node to blame; {node}, {cause}, {site}, {job}, {user}, {attempt}, {run}, {detail} are replaced, and the log's line
    is on its standard input."""

    @model_validator(mode="after")
    def _can_be_used(self) -> SiteReliability:
        if self.fault_log is not None and not self.fault_log.is_absolute():
            raise RuleError("must be an absolute path, the same on every node", item="fault_log", value=str(self.fault_log))
        try:
            words = shlex.split(self.fault_command or "x")
        except ValueError as error:
            raise RuleError(f"cannot be split into words: {error}", item="fault_command", value=self.fault_command) from None
        unknown = [name for word in words for name in re.findall(r"\{(\w+)\}", word) if name not in FAULT_FIELDS]
        if unknown:
            raise RuleError(f"has no {{{unknown[0]}}}: there are {', '.join(FAULT_FIELDS)}", item="fault_command", value=self.fault_command)
        return self


class SitePreflight(Frozen):
    """What the checks of nodes expect here, and which are not made (docs/preflight.md)."""

    skip: tuple[Word, ...] = ()
    """Checks that are not made."""
    tolerate: tuple[Word, ...] = ()
    """Checks that keep no node out: what they find is told as a warning."""
    timeout_s: PositiveFloat = 20.0
    """How long any one look at a node may take."""
    clock_skew_s: PositiveFloat = 2.0
    """By which a node's clock may differ from that of the node that asks."""
    memory_free: Fraction = 0.9
    """Share of the job's memory that must be free on a node."""
    scratch_bytes: NonNegative = 0
    """That must be free on paths.scratch."""
    expect: tuple[Literal["IB", "RoCE", "EFA", "Socket", "GPUDirect", "NVLS"], ...] = ()
    """What NCCL must have chosen between nodes and within them; none: what fits fabric.kind."""
    baseline: Path | None = None
    """What healthy nodes measured, as `preflight --record` writes it; default: NAME.baseline.json, found where site files are."""
    history: Path | None = None
    """A file to which every preflight adds a line for each node; default: preflight.jsonl in paths.root."""
    cache_s: NonNegative = 600
    """For so long a node that was fit need not be measured again; a fault of it ends that."""
    full_s: Positive = 600
    """The most that the measurements of a full preflight take."""
    pairs_s: NonNegative = 60
    """The most of it that the tournament of pairs takes; 0: none is held."""
    commands: dict[Word, Line] = Field(default_factory=dict)
    """The site's own checks: name to a command that runs on every node and ends as Nagios' plugins do: 0, 1 (warning), 2, 3 (unknown)."""


class SiteTimeouts(Frozen):
    """Limits in seconds."""

    collective_timeout_s: Positive = 600
    start_timeout_s: Positive = 600
    """From srun to the first barrier."""
    node_check_timeout_s: Positive = 120
    exit_grace_s: Positive = 15
    """How long the other ranks may take to leave after the first fault."""
    supervisor_silence_s: Positive = 40
    """Without a word from the supervisor, after which the nodes' agents end the ranks and leave; it says something every 5 s."""


class SiteConfig(Frozen):
    """A cluster."""

    v: Version = FORMAT_VERSION
    name: Word
    description: str = ""
    launcher: Literal["srun", "mpiexec"] = "srun"
    device: Literal["cuda", "cpu"] = "cuda"
    slurm: SiteSlurm = Field(default_factory=SiteSlurm)
    node: SiteNode
    fabric: SiteFabric = Field(default_factory=SiteFabric)
    paths: SitePaths = Field(default_factory=SitePaths)
    storage: SiteStorage = Field(default_factory=SiteStorage)
    environment: SiteEnvironment = Field(default_factory=SiteEnvironment)
    python: SitePython = Field(default_factory=SitePython)
    reliability: SiteReliability = Field(default_factory=SiteReliability)
    timeouts: SiteTimeouts = Field(default_factory=SiteTimeouts)
    preflight: SitePreflight = Field(default_factory=SitePreflight)
