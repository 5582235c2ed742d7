"""What a launcher says about tasks that ended, as deaths of world ranks: a hint for the cause, never for the outcome.

srun numbers tasks over its own sorted node list, in blocks of `tasks_per_node`; the world has its own order of nodes. What ended by
a signal after "Terminating StepId" or "Job step aborted" was ended by srun itself: no cause.

>>> sorted(deaths_in("srun: error: n1: task 3: Exited with exit code 7", ("n2", "n1"), 4).items())
[(7, Death(code=7, how='exited with code 7'))]
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

from slurmtrain.resilience.classify import Death
from slurmtrain.slurm.hostlist import expand

_TASKS = re.compile(r"srun: error: (\S+): tasks? ([\d,-]+): (.+?)\s*$")
_ENDING = re.compile(r"srun: .*(Terminating StepId|Force Terminated|Job step aborted)")
_CODE = re.compile(r"Exited with exit code (\d+)")
_HYDRA_CODE = re.compile(r"EXIT CODE: (\d+)")
_HYDRA_SIGNAL = re.compile(r"EXIT STRING: (.+ \(signal \d+\))")
_LIKELY = frozenset({signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM})
"""Hydra writes a signal's number where an exit code would stand, and says which of the two it was only once all tasks are gone."""
_MEMORY = re.compile(r"^(?:slurmstepd|srun): .*(?:oom[_-]kill|OOM Killed|Out Of Memory).*$", re.IGNORECASE | re.MULTILINE)
HYDRA_ADVICE = r"^=|^YOUR APPLICATION TERMINATED|^This typically refers to|^Please see the FAQ"
"""Lines of hydra's that tell nothing."""


def deaths_in(words: str, nodes: Sequence[str], tasks_per_node: int) -> dict[int, Death]:
    """Deaths by world rank, in the order in which they were told; `nodes` in the order of the world."""
    found: dict[int, Death] = {}
    ending = False
    for line in words.splitlines():
        ending = ending or _ENDING.search(line) is not None
        form = _TASKS.search(line)
        if form is None:
            continue
        death = _death(form[3])
        if death.code is not None or not ending:
            for rank in _ranks(form[1], form[2], nodes, tasks_per_node):
                found.setdefault(rank, death)
    return found


def memory_ran_out(words: str) -> str:
    """Slurm's line about a task that was killed because its memory ran out; empty where there is none.

    >>> memory_ran_out("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.")
    'Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.'
    """
    form = _MEMORY.search(words)
    return form[0].partition(": ")[2].removeprefix("error: ").strip() if form else ""


def hydra_end(words: str) -> str:
    """What mpiexec (hydra) says of a task that it does not name: its signal, or its exit code; empty where it says nothing."""
    if form := _HYDRA_SIGNAL.search(words):
        return form[1].strip().lower()
    form = _HYDRA_CODE.search(words)
    code = int(form[1]) if form else 0
    meant = f", or {signal.strsignal(code)} (signal {code})".lower() if code in _LIKELY else ""
    return f"exit code {code}{meant}" if form else ""


def _death(text: str) -> Death:
    form = _CODE.search(text)
    return Death(int(form[1]), f"exited with code {form[1]}") if form else Death(None, text)


def _ranks(host_list: str, tasks: str, nodes: Sequence[str], tasks_per_node: int) -> Iterator[int]:
    """World ranks of tasks that srun names: local rank from the task's number, node from the name (of several: by the number)."""
    hosts = [host for host in expand(host_list) if host in nodes]
    numbers = [n for part in tasks.split(",") for n in _range(part)]
    for number in numbers:
        place = number // tasks_per_node
        host = hosts[0] if len(hosts) == 1 else _nth(hosts, place - min(numbers) // tasks_per_node)
        if host is not None:
            yield nodes.index(host) * tasks_per_node + number % tasks_per_node


def _range(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def _nth(hosts: Sequence[str], index: int) -> str | None:
    return hosts[index] if 0 <= index < len(hosts) else None
