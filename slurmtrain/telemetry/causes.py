"""Why an attempt ended, in one word: what budgets, exclusion of nodes and accounts go by."""

from __future__ import annotations

from typing import Literal, get_args

Cause = Literal[
    "finished",
    "stopped",
    "time_limit",
    "preempted",
    "cancelled",
    "node_failure",
    "rank_crash",
    "hang",
    "numerical",
    "silent_corruption",
    "out_of_memory",
    "storage",
    "network",
    "configuration",
    "launch_failure",
    "prolog_failure",
]
"""finished: all steps done. stopped: a person asked for it. time_limit, preempted: Slurm's own doing, nobody's fault. cancelled: `scancel`
or `slurmtrain cancel`. node_failure: a node is gone. rank_crash: a rank ended by a signal, a code of its own or an exception. hang: no
rank moves. numerical: loss or gradients not finite, or a spike. silent_corruption: replicas differ. out_of_memory: of the host or the
device. storage: the shared folder (full, gone, stale). network: peers lost one another, and no node or rank is to blame. configuration:
what was asked cannot be. launch_failure: no rank ever spoke. prolog_failure: Slurm held the job because a prolog failed."""

CAUSES: tuple[Cause, ...] = get_args(Cause)
NOBODYS_FAULT: frozenset[Cause] = frozenset({"finished", "stopped", "time_limit", "preempted", "cancelled"})
"""Ends that cost no budget."""
OF_A_NODE: frozenset[Cause] = frozenset({"node_failure", "silent_corruption"})
"""Causes for which the node is to blame, and avoided from then on; a hang's or a launch failure's node only where one is named."""
