"""Which optimisers a layout can have, and how much a checkpoint holds for each."""

from __future__ import annotations

from slurmtrain.config.job import JobConfig

_WHOLE = {"muon": "makes the update of a matrix orthogonal", "adafactor": "keeps sums over a matrix's rows and columns"}
"""Optimisers that need each matrix whole on its rank, and what for."""


def optimizer_fault(job: JobConfig) -> str | None:
    """Why the job's optimiser cannot work in its layout, and what would do; of optimizer.name."""
    why, parallel = _WHOLE.get(job.optimizer.name), job.parallel
    if why is None:
        return None
    if parallel.tp > 1:
        return f"{why}, and parallel.tp = {parallel.tp} cuts matrices: use tp = 1 (pp, cp and dp leave them whole), or adamw"
    if parallel.dp_mode != "ddp":
        return f'{why}, and parallel.dp_mode = "{parallel.dp_mode}" gives each rank some rows: use dp_mode = "ddp", or adamw'
    return None


def state_bytes(job: JobConfig) -> int:
    """Least size of a checkpoint: weights, the optimiser's state and the moving average, each once, in fp32."""
    optimizer = job.optimizer
    moments = {"adamw": 2, "muon": 1, "sgd": 1 if optimizer.momentum else 0}.get(optimizer.name, 0)
    copies = 1 + moments + (job.training.ema_decay is not None)
    return 4 * job.model.parameters() * copies
