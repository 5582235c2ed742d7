"""Links of a chain (`slurm.continuation = "chain"`): one array, one job at a time. Which of them does nothing, and ends at once. Pure.

| what a link finds, of its own array | it ends with |
|---|---|
| FINISHED, or STOP (the supervisor's own gates, of every job) | 0 |
| a person cancelled: by `slurmtrain cancel`, the newest attempt by scancel, or the link before, as Slurm says | 0 |
| the budget is spent, or the configuration was refused | 93 |
| anything else | it makes the next attempt |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurmtrain.errors import EXIT_NO_RESTART, EXIT_OK
from slurmtrain.resilience.budget import Spent
from slurmtrain.resilience.records import AttemptRecord


@dataclass(frozen=True)
class Barred:
    """Why a link makes no attempt, and the code it ends with."""

    code: int
    outcome: str
    why: str


def barred(job_id: str, spent: Spent, newest: AttemptRecord | None, *, cancelled: bool) -> Barred | None:
    """The table above. `cancelled`: by a person, since the array was submitted; `newest`: the newest attempt of the run."""
    array = job_id.partition("_")[0]
    ended = newest.outcome if newest is not None and newest.job_id.partition("_")[0] == array else None
    if cancelled or (ended is not None and ended.category == "cancelled"):
        return Barred(EXIT_OK, "cancelled", "a person cancelled the chain: nothing to do; `slurmtrain submit --resume` begins another")
    if spent.over and spent.job_id == array:
        return Barred(EXIT_NO_RESTART, "refused", f"the chain goes no further: {spent.over}; `slurmtrain submit --resume` begins another")
    return None


def is_last_link(environ: Mapping[str, str]) -> bool:
    """Whether no member of the array comes after this one."""
    own, last = (environ.get(f"SLURM_ARRAY_TASK_{name}", "") for name in ("ID", "MAX"))
    return own.isdigit() and last.isdigit() and int(own) >= int(last)
