"""How an attempt ended, and why: gathers the evidence, asks Slurm where only Slurm can tell, lets `classify` and `causes_of` decide."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slurmtrain.errors import one_line
from slurmtrain.resilience.causes_of import Around, cause_of
from slurmtrain.resilience.classify import Evidence, Verdict, classify
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.launcher_words import HYDRA_ADVICE, deaths_in, hydra_end, memory_ran_out
from slurmtrain.resilience.records import AttemptRecord
from slurmtrain.resilience.signals import INTERRUPT, NOTICE, TERM
from slurmtrain.resilience.tracker import Tracker
from slurmtrain.resilience.verdict import gone_nodes
from slurmtrain.resilience.watch import Watched
from slurmtrain.steps.launcher import Step
from slurmtrain.store.foreign import newest_foreign
from slurmtrain.store.local import newest_step
from slurmtrain.telemetry.causes import Cause
from slurmtrain.telemetry.errorcause import cause_of_error
from slurmtrain.telemetry.history import cancelled, read_acts

_TAIL_BYTES = 8192
_NOISE = re.compile(rf"{HYDRA_ADVICE}|^srun: |^slurmstepd|^\s*$")


def judge_end(c: Composition, record: AttemptRecord, evidence: Evidence) -> Verdict:
    """The verdict on an attempt whose launcher is gone; where a node fell silent, after Slurm's word on it."""
    verdict = classify(evidence)
    if verdict.kind == "node_failure":
        evidence = replace(evidence, down=gone_nodes(c, record, verdict))
        verdict = replace(classify(evidence), suspects=tuple(sorted(evidence.down or ())))
    elif verdict.kind == "requeue" and c.signals.count(TERM) and c.allocation.job_id and evidence.down is None:
        evidence = replace(evidence, down=c.allocation.down(record.nodes))
    return replace(verdict, category=category(c, verdict, evidence))


def hindered(error: Exception) -> Verdict:
    """The verdict on an attempt that an error of the supervisor's own kept from its start, or from its end."""
    cause = cause_of_error(error)
    told = cause if cause in {"storage", "out_of_memory", "network"} else "launch_failure"
    return Verdict("launch", one_line(str(error)), category=told)


def category(c: Composition, verdict: Verdict, evidence: Evidence | None = None) -> Cause:
    """The cause of an end in one word. Slurm is asked again only where a stop may have been its own doing."""
    if verdict.category is not None:
        return verdict.category
    asked = verdict.kind == "requeue" and c.signals.count(TERM) > 0
    around = Around(
        job=c.allocation.look(fresh=asked).job if c.allocation.job_id else None,
        restarts=c.allocation.restart_count,
        signal=heard(c),
        own_will=evidence.own_will if evidence is not None else c.signals.count(NOTICE) > 0,
        cancelled=cancelled(read_acts(c.run), c.allocation.job_id),
        words=verdict.cause,
    )
    return cause_of(verdict.kind, evidence, around)


def heard(c: Composition) -> str:
    """The strongest signal that came: INT, TERM or USR2; empty: none."""
    return next((name for name, number in (("INT", INTERRUPT), ("TERM", TERM), ("USR2", NOTICE)) if c.signals.count(number)), "")


def evidence_of(c: Composition, record: AttemptRecord, watched: Watched, tracker: Tracker, step: Step) -> Evidence:
    """What is known now."""
    words, attempt = step.words(), c.run.attempt(record.attempt).path
    spoke = tracker.spoke or bool(watched.records)
    return Evidence(
        nodes=record.nodes,
        tasks_per_node=record.tasks_per_node,
        records=watched.records,
        deaths=deaths_in(words, record.nodes, record.tasks_per_node),
        spoke=spoke,
        asked=watched.asked,
        down=_down_now(c, record, spoke=spoke),
        complete=last_step_is_saved(c),
        log=last_words(attempt, words),
        ended_because=watched.ended_because,
        launcher_signal=_signal_name(step.poll()),
        own_will=watched.own_will,
        hang=getattr(watched, "hang", None),
        oom=next(filter(None, map(memory_ran_out, _texts(attempt, words))), ""),
        folder_gone=not c.run.path.is_dir(),
    )


def _signal_name(code: int | None) -> str:
    """The signal that a process ended by, of the code that Python gives it: -9 is SIGKILL."""
    if code is None or code >= 0:
        return ""
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def _down_now(c: Composition, record: AttemptRecord, *, spoke: bool) -> frozenset[str] | None:
    """Without Slurm no node is down; of a world that never spoke one look is enough; else Slurm is asked when it matters (None)."""
    if not c.allocation.job_id:
        return frozenset()
    return None if spoke else c.allocation.down(record.nodes) or frozenset()


def last_words(attempt: Path, words: str) -> str:
    """The last line that a rank printed, else the launcher's last; with the end of a task that mpiexec tells of."""
    texts = _texts(attempt, words)
    end = next(filter(None, map(hydra_end, texts)), "")
    said = _last(texts, without_noise=True) or ("" if end else _last(texts, without_noise=False))
    return one_line("; ".join(part for part in (said, end) if part))


def _texts(attempt: Path, words: str) -> list[str]:
    """What the launcher said, and the ends of the nodes' logs."""
    return [words, *(_tail(path) for path in sorted(attempt.glob("node-*.log")))]


def _last(texts: Sequence[str], *, without_noise: bool) -> str:
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not _NOISE.search(line)] if without_noise else lines
    return kept[-1] if kept else ""


def _tail(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_step_is_saved(c: Composition) -> bool:
    """Whether the run's last checkpoint is there. A script that does not say how many steps it makes has no last one."""
    return c.setup.job.steps is not None and durable_step(c) == c.setup.job.steps


def durable_step(c: Composition) -> int | None:
    """The newest checkpoint's step, on the nodes' own disks too; None where there is none, or none can be seen."""
    entry = c.setup.job.entry
    try:
        if entry is not None:
            return found.step if (found := newest_foreign(c.run, entry)) is not None else None
        return newest_step(c.run)
    except OSError:
        return None
