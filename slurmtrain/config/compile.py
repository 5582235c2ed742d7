"""Which layouts torch.compile does not work with, and what to do then. Found by trying (torch 2.13); tests/parallel/test_compile.py tries
again.
"""

from __future__ import annotations

from slurmtrain.config.job import JobConfig
from slurmtrain.config.parallel import ZERO_BUBBLE


def compile_fault(job: JobConfig) -> str | None:
    """What is wrong with training.compile, to be told after its key and value; None: nothing."""
    training, parallel = job.training, job.parallel
    schedule = parallel.resolved_schedule()
    if training.compile == "off":
        return None
    if parallel.pp > 1 and schedule in ZERO_BUBBLE:
        why = f'makes input and weight gradients of a layer in one go, which schedule = "{schedule}" wants at different times'
        return f'{why}: use "off", or schedule = "1f1b" or "interleaved"'
    if parallel.cp > 1 and parallel.cp_mode == "ring" and training.recompute != "none":
        why = (
            f'leaves every layer as it is: cp_mode = "ring" cannot be traced, and recompute = "{training.recompute}" is traced whole or not'
        )
        return f'{why}: use "off", recompute = "none", or cp_mode = "allgather" or "ulysses"'
    return None
