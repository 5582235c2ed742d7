"""The Plan: the chosen layout, written as plan.json, which alone says the world. Built by `fabric.plan`."""

from __future__ import annotations

from typing import Literal

from slurmtrain.config.base import FORMAT_VERSION, Frozen, NonNegative, Positive
from slurmtrain.config.parallel import V_SHAPED, CpMode, DpMode, ScheduleName
from slurmtrain.config.values import Version


class Plan(Frozen):
    """A layout. world = tp * cp * dp * pp = nodes * tasks_per_node; ep lies inside dp."""

    v: Version = FORMAT_VERSION
    world: Positive
    nodes: Positive
    spares: NonNegative
    gpus_per_node: Positive
    ranks_per_node: Positive | None = None
    """Of a script that wants fewer ranks than GPUs; None: one for each."""
    tp: Positive
    cp: Positive
    ep: Positive
    dp: Positive
    pp: Positive
    order: tuple[str, ...]
    """Axes fastest first; dp here is what ep leaves of it (dp / ep)."""
    nvlink_domain: Literal["node", "block", "pairs"]
    block_nodes: Positive
    stages: tuple[tuple[int, ...], ...]
    """Layer numbers of each of the pp x vp pipeline stages; the embedding is in the first, the head in the last."""
    global_batch: Positive
    micro_batch: Positive
    microbatches: Positive
    """Micro-batches per rank and step: global_batch / (dp * micro_batch)."""
    dp_mode: DpMode
    dp_shard: Positive | None = None
    """Data-parallel ranks that share one copy of what dp_mode shards; None: all of them."""
    cp_mode: CpMode = "ring"
    schedule: ScheduleName = "1f1b"
    vp: Positive = 1
    """Stages of each pipeline rank."""

    @property
    def tasks_per_node(self) -> int:
        """Ranks of each node."""
        return self.ranks_per_node or self.gpus_per_node

    def sizes(self) -> dict[str, int]:
        """Size of each axis in `order`, with dp / ep under "dp"."""
        degree = {"tp": self.tp, "cp": self.cp, "ep": self.ep, "dp": self.dp // self.ep, "pp": self.pp}
        return {axis: degree[axis] for axis in self.order}

    def stages_of(self, pp_index: int) -> tuple[int, ...]:
        """Numbers of the stages of a pipeline rank, ascending."""
        if self.pp > 1 and self.schedule in V_SHAPED:
            return (pp_index, 2 * self.pp - 1 - pp_index)
        return tuple(range(pp_index, self.pp * self.vp, self.pp))

    def pp_index_of(self, stage: int) -> int:
        """The pipeline rank that has a stage."""
        return next(index for index in range(self.pp) if stage in self.stages_of(index))

    @property
    def shard(self) -> int:
        """Data-parallel ranks over which state is sharded; 1 where nothing is."""
        return 1 if self.dp_mode == "ddp" else self.dp_shard or self.dp
