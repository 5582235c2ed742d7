"""First values from elsewhere: a folder of Hugging Face safetensors, or the weights of another run's checkpoint, of any layout.

Nothing but the weights is taken: optimiser, schedule, data and generators begin anew. With a moving average there the weights are
taken, not the average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from slurmtrain.boxes import Part
from slurmtrain.checkpoint.fitting import MODEL, fit_of_checkpoint
from slurmtrain.checkpoint.group import Group
from slurmtrain.checkpoint.hf import load_weights
from slurmtrain.checkpoint.restore import restore
from slurmtrain.checkpoint.state import load_checkpoint
from slurmtrain.config.job import JobConfig
from slurmtrain.config.weights import RunWeights, run_weights
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import Found
from slurmtrain.units import counted

Entry = tuple[Part, Tensor]


def warm_start(weights: Path, job: JobConfig, entries: Sequence[Entry], group: Group) -> str:
    """Fill the parts of local tensors, named as in `models.names`; what to say of it. Collective.

    What the job allows to be missing is left as it is. Raises ConfigError and CheckpointError, for tensors by their names.
    """
    source = run_weights(weights)
    if source is not None:
        return _from_run(source, job, entries, group)
    return f"weights of {weights}: {load_weights(weights, job.model, entries).line}"


def _from_run(source: RunWeights, job: JobConfig, entries: Sequence[Entry], group: Group) -> str:
    policy, run = job.checkpoint.verify, RunDir(source.path)
    told: list[str] = []

    def load(found: Found) -> None:
        try:
            fitting = fit_of_checkpoint(found.manifest, job.model)
        except CheckpointError as error:
            raise type(error)(f"{found.folder}: {error}") from None
        wanted = [(replace(part, name=MODEL + fitting.found[part.name]), tensor) for part, tensor in entries if part.name in fitting.found]
        load_checkpoint(found.folder, found.manifest, wanted, policy, (group.rank, group.size))
        told[:] = [f"{counted(len(fitting.found), 'tensor')}{fitting.words}"]

    found = restore(run.checkpoints, group, load, policy=policy, step=source.step)
    if found is None:
        step = "no checkpoint" if source.step is None else f"no checkpoint of step {source.step}"
        raise CheckpointError(f"{run.path}: there is {step} to take weights from")
    return f"weights of {run.path} at step {found.step}: {told[0]}"
