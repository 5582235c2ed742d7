"""The Plan: the chosen layout, written as plan.json, which alone says the world. Built by `fabric.plan`."""

from __future__ import annotations

from typing import Literal

from slurmtrain.config.base import FORMAT_VERSION, Frozen, NonNegative, Positive
from slurmtrain.config.values import Version


class Plan(Frozen):
    """A layout. world = tp * cp * dp * pp = nodes * gpus_per_node; ep lies inside dp."""

    v: Version = FORMAT_VERSION
    world: Positive
    nodes: Positive
    spares: NonNegative
    gpus_per_node: Positive
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
    """Layer numbers of each pipeline stage; the embedding is in the first, the head in the last."""
    global_batch: Positive
    micro_batch: Positive
    microbatches: Positive
    """Micro-batches per rank and step: global_batch / (dp * micro_batch)."""
    dp_mode: Literal["ddp", "fsdp"]

    def sizes(self) -> dict[str, int]:
        """Size of each axis in `order`, with dp / ep under "dp"."""
        degree = {"tp": self.tp, "cp": self.cp, "ep": self.ep, "dp": self.dp // self.ep, "pp": self.pp}
        return {axis: degree[axis] for axis in self.order}
