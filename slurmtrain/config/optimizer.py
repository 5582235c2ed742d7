"""Which optimisers a layout can have."""

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
