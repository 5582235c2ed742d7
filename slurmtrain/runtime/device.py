"""Which device a rank computes on. A site that says cuda never falls back to the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slurmtrain.errors import ConfigError


def gpu_index(visible: int, local_rank: int, local_size: int, *, node: str, seen: str = "") -> int:
    """Index of this rank's GPU among the `visible` ones: its local rank, or 0 where each rank sees one alone.

    `seen`: the value of CUDA_VISIBLE_DEVICES, for the message. Raises ConfigError for any other number of GPUs.
    """
    if visible == 1:
        return 0
    if visible == local_size:
        return local_rank
    shown = f"CUDA_VISIBLE_DEVICES={seen!r}"
    if visible == 0:
        problem = f"no GPU can be used on {node} ({shown}): is torch built for CUDA, the driver loaded, --gpus-per-node asked for?"
    else:
        problem = f"{visible} GPUs are visible on {node} to {local_size} ranks ({shown}): one each, or one per rank, is needed"
    raise ConfigError(problem, where="site", key="device", value="cuda")


def check_distinct(rows: Sequence[tuple[str, str]]) -> None:
    """`rows`: (node, UUID of its GPU) of every rank. Raises ConfigError when two ranks of a node share a GPU."""
    shared = [node for (node, _), count in Counter(rows).items() if count > 1]
    if shared:
        raise ConfigError(
            f"several ranks of {shared[0]} see the same single GPU: ask for GPUs with --gpus-per-node, or bind one to each task",
            where="site",
            key="slurm.gpu_bind",
        )
