"""What must hold when the soak's run has finished; each finding is one line, none is as it should be."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from soak_cluster import Cluster, Trained
from soak_faults import processes_of

from slurmtrain.report.folder import read_story
from slurmtrain.report.goodput import accounts
from slurmtrain.telemetry.heartbeat import run_memory

_LITTER = (".tmp", ".trash", ".new")


def findings(soaked: Trained, still: Trained, cluster: Cluster) -> list[str]:
    return [*_losses(soaked, still), *_records(soaked), *_accounts(soaked), *_left(soaked), *_nodes(cluster)]


def _losses(soaked: Trained, still: Trained) -> Iterator[str]:
    """Every step that was ever trained has the undisturbed run's loss and norm, bit for bit."""
    expected = {event.fields["step"]: (event.fields["loss"], event.fields["grad_norm"]) for event in still.steps()}
    done = set()
    for event in soaked.steps():
        step = event.fields["step"]
        done.add(step)
        found = (event.fields["loss"], event.fields["grad_norm"])
        if found != expected.get(step):
            yield f"step {step} of attempt {event.attempt}: loss and norm {found}, undisturbed {expected.get(step)}"
    if missing := sorted(set(expected) - done):
        yield f"steps that were never trained: {missing}"


def _records(soaked: Trained) -> Iterator[str]:
    records = soaked.attempts()
    for before, after in pairwise(records):
        ended = before.outcome
        if ended is None:
            if before.restart_count == after.restart_count:
                yield f"attempt {before.attempt} was never closed"
        elif ended.t_end > after.t_start:
            yield f"attempt {after.attempt} began before attempt {before.attempt} ended"
    if not records or records[-1].outcome is None or records[-1].outcome.kind != "finished":
        yield "the last attempt has not finished"


def _accounts(soaked: Trained) -> Iterator[str]:
    told = accounts(read_story(soaked.run))
    if sum(told.parts_us.values()) != told.wall_us:
        yield f"the accounts' parts make {sum(told.parts_us.values())} us of {told.wall_us}"
    newest = max((event.fields["step"] for event in soaked.steps()), default=0)
    if told.kept_steps != newest:
        yield f"the accounts keep {told.kept_steps} of {newest} steps"


def _left(soaked: Trained) -> Iterator[str]:
    """Processes, files that were to be moved or removed, nodes' memory. An agent that was killed leaves its number: the next start there
    takes it away.
    """
    path = soaked.run.path
    yield from (f"pid {pid} is left: {' '.join(line)[:160]}" for pid, line in processes_of(str(path)))
    yield from (f"{one.relative_to(path)} is left" for one in path.rglob("*") if one.name.endswith(_LITTER))
    if names := sorted({one.name for one in run_memory(path).rglob("*") if one.is_file()} - {"agent"}):
        yield f"{run_memory(path)} is left: {', '.join(names)[:200]}"


def _nodes(cluster: Cluster) -> Iterator[str]:
    for line in cluster.run(["sinfo", "-h", "-N", "-p", "main", "-o", "%N %T %E"]).splitlines():
        if any(word in line for word in ("drain", "down", "fail")):
            yield f"node {line.strip()}"
