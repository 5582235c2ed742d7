"""The requeue: the supervisor's last act, and what is asked of Slurm for the job while it waits.

`scontrol requeue` ends its caller by TERM, and what is left of it by KILL KillWait later. From then on the job counts as pending, though
it is shown as COMPLETING until its last process is gone: its ExcNodeList and a later StartTime can be set (tried, 22.05), and that is done
by the one who asked for the requeue, in its last second. An earlier StartTime cannot: Slurm sets it anew, cred_expire later, when the last
process is gone. Nothing depends on all this: a job about which nothing was said starts by itself, and the next supervisor avoids the nodes
where there are others. The job is never held for it: one that is held, by a process that was killed meanwhile, would wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurmtrain.clock import Clock
from slurmtrain.errors import SlurmError, SlurmUnavailableError
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.slurm.hostlist import fold
from slurmtrain.slurm.types import JobInfo, NodeInfo

RETRY_S = 5.0
LIMIT_S = 60.0
AFTER_S = 1.0
"""What the TERM of a requeue may take to arrive."""
TRIES = 3
WAITS_WITHIN_S = 5.0
"""From the requeue until Slurm counts it."""
_POLL_S = 0.2
_UNUSABLE = frozenset({"DOWN", "DRAIN", "FAIL", "FAILING", "NOT_RESPONDING", "MAINT"})


@dataclass(frozen=True)
class Wish:
    """What is asked for a job that waits. `avoid`: nodes; `keep`: nodes that the person who submitted excludes; `delay_s`: before it
    starts; `nodes`: that it needs; `free_choice`: it is left to Slurm where it runs (no --nodelist, --constraint, --reservation).
    """

    avoid: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    """All that the run ever excluded: what of these is not in `avoid` any more may be used again."""
    delay_s: float = 0.0
    nodes: int = 1
    free_choice: bool = True


def requeue(client: SlurmClient, job_id: str, clock: Clock, terms: Callable[[], int], say: Callable[[str], None]) -> bool:
    """Ask for the requeue: again while Slurm does not answer, never after it has. Whether it was heard.

    A requeue that works ends scontrol, and this process, by TERM (`terms`: how often it came), often before scontrol has answered.
    """
    limit, before = clock.monotonic() + LIMIT_S, terms()
    while True:
        try:
            client.requeue(job_id)
        except SlurmError as error:
            clock.sleep(AFTER_S)
            if terms() > before:
                return True
            if not isinstance(error, SlurmUnavailableError) or clock.monotonic() >= limit:
                say(f"no requeue: {error}; go on by `slurmtrain submit --resume`")
                return False
            clock.sleep(RETRY_S)
        else:
            return True


def arrange(client: SlurmClient, job_id: str, wish: Wish, *, restarts: int, clock: Clock, say: Callable[[str], None]) -> None:
    """Tell Slurm about the job that waits for its next start: what is refused is said, and changes nothing. Raises nothing of Slurm's.

    `restarts`: of the start that ends.
    """
    for left in reversed(range(TRIES)):
        try:
            _tell(client, job_id, restarts, wish, clock, say)
        except SlurmError as error:  # the TERM of the requeue ends a question, too, that is asked just then
            if not left:
                say(f"the job waits as Slurm has it: {error}")
            clock.sleep(AFTER_S)
        else:
            break


def _tell(client: SlurmClient, job_id: str, restarts: int, wish: Wish, clock: Clock, say: Callable[[str], None]) -> None:  # noqa: PLR0917
    """Raises SlurmError."""
    info = _requeued(client, job_id, restarts, clock)
    if info is None:
        return
    wanted = excluded_for(wish, info.avoided, client.partition_nodes(info.partition) if wish.avoid else ())
    if set(wanted) != set(info.avoided):
        client.avoid(job_id, wanted)
        say(f"Slurm is told to leave out {fold(wanted)}" if wanted else "Slurm may use all nodes again")
    if wish.delay_s > 0:
        client.start_in(job_id, wish.delay_s)


def excluded_for(wish: Wish, now: Sequence[str], partition: Sequence[NodeInfo]) -> tuple[str, ...]:
    """The job's ExcNodeList: what a person excludes, and the nodes to avoid, as long as enough usable ones are left to start on.

    `now`: what stands there. A job that excludes too much would wait for ever, with nobody there to say otherwise.
    """
    others = {*wish.keep, *(node for node in now if node not in wish.known)}
    usable = [node for node in partition if not node.states & _UNUSABLE and node.name not in others and node.name not in wish.avoid]
    bad = wish.avoid if wish.free_choice and len(usable) >= wish.nodes else ()
    return tuple(sorted({*others, *bad}))


def _requeued(client: SlurmClient, job_id: str, restarts: int, clock: Clock) -> JobInfo | None:
    """The job once Slurm counts the requeue; None where it does not, or has started the job again."""
    limit = clock.monotonic() + WAITS_WITHIN_S
    while (info := client.job(job_id)) is not None and info.restarts <= restarts and clock.monotonic() < limit:
        clock.sleep(_POLL_S)
    return info if info is not None and info.restarts > restarts and info.state != "RUNNING" else None
