"""How an attempt ended: gathers the evidence, asks Slurm where only Slurm can tell, and lets `classify` decide."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slurmtrain.errors import one_line
from slurmtrain.resilience.classify import Evidence, Verdict, classify
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.launcher_words import HYDRA_ADVICE, deaths_in, hydra_end
from slurmtrain.resilience.records import AttemptRecord
from slurmtrain.resilience.tracker import Tracker
from slurmtrain.resilience.verdict import slurms_word
from slurmtrain.resilience.watch import Watched
from slurmtrain.steps.launcher import Step
from slurmtrain.store.local import newest_step

_TAIL_BYTES = 8192
_NOISE = re.compile(rf"{HYDRA_ADVICE}|^srun: |^slurmstepd|^\s*$")


def judge_end(c: Composition, record: AttemptRecord, evidence: Evidence) -> Verdict:
    """The verdict on an attempt whose launcher is gone; where a node fell silent, after Slurm's word on it."""
    verdict = classify(evidence)
    if verdict.kind == "node_failure":
        return classify(replace(evidence, down=slurms_word(c, record, verdict)))
    return verdict


def evidence_of(c: Composition, record: AttemptRecord, watched: Watched, tracker: Tracker, step: Step) -> Evidence:
    """What is known now."""
    words = step.words()
    spoke = tracker.spoke or bool(watched.records)
    return Evidence(
        nodes=record.nodes,
        tasks_per_node=record.tasks_per_node,
        records=watched.records,
        deaths=deaths_in(words, record.nodes, record.tasks_per_node),
        spoke=spoke,
        asked=watched.asked,
        down=_down_now(c, record, spoke=spoke),
        complete=durable_step(c) == c.setup.job.training.steps,
        log=last_words(c.run.attempt(record.attempt).path, words),
        ended_because=watched.ended_because,
        launcher_signal=_signal_name(step.poll()),
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
    texts = [words, *(_tail(path) for path in sorted(attempt.glob("node-*.log")))]
    end = next(filter(None, map(hydra_end, texts)), "")
    said = _last(texts, without_noise=True) or ("" if end else _last(texts, without_noise=False))
    return one_line("; ".join(part for part in (said, end) if part))


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


def durable_step(c: Composition) -> int | None:
    """The newest checkpoint's step, on the nodes' own disks too; None where there is none, or none can be seen."""
    try:
        return newest_step(c.run)
    except OSError:
        return None
