"""What `status` tells of a run: one object, as JSON or as lines that people read."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmtrain.cli.again import again
from slurmtrain.cli.facts import Seen, config_of
from slurmtrain.config.job import JobConfig
from slurmtrain.config.stored import read_plan
from slurmtrain.errors import CheckpointError, ConfigError
from slurmtrain.resilience.budget import in_words, summary
from slurmtrain.resilience.examination import read_examination
from slurmtrain.resilience.lines import number
from slurmtrain.resilience.records import read_attempts
from slurmtrain.resilience.state import held, held_by_start
from slurmtrain.rundir import RunDir
from slurmtrain.slurm.hostlist import fold
from slurmtrain.store.foreign import newest_foreign
from slurmtrain.store.listing import newest_durable_step
from slurmtrain.store.local import newest_local
from slurmtrain.store.origin import read_origin
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.interventions import read_book
from slurmtrain.telemetry.reader import parse_lines
from slurmtrain.units import counted, format_count

_TAIL_BYTES = 1 << 16
_EVALUATION_BYTES = 1 << 20
"""Evaluations are far apart: so much of the events is looked through for them."""
_RECENT = 10


@dataclass(frozen=True)
class Report:
    """The keys of `status --json`, in their order. `evaluation`: name of a set to its newest `[step, loss]`; `skipped`: of the
    `recent` newest steps; `origin`: the checkpoint of another run that this one began with, in words.
    """

    run: str
    state: str
    reason: str
    job_id: str
    attempt: int | None
    step: int
    steps: int | None
    loss: float | str | None
    tokens_per_s: float | None
    nodes: tuple[str, ...]
    last_durable_step: int | None
    checked_s_ago: float | None
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    evaluation: Mapping[str, tuple[int, float | str]] = field(default_factory=dict)
    recent: int = 0
    skipped: int = 0
    error: str = ""
    path: str = ""
    next: str = ""
    then: str = ""
    origin: str = ""
    shared_step: int | None = None
    """Of the checkpoints in the run folder the newest; `last_durable_step`: those on the nodes' own disks count, too."""
    planned_nodes: int | None = None
    """That the run uses where it can have them: an elastic one may have fewer now."""
    category: str | None = None
    """Why the newest attempt ended (`telemetry.causes`); null while it runs."""
    budget: str = ""
    """What was lost since the newest checkpoint, of what."""
    eligible_at: float | None = None
    """When a job that waits for its begin time may start; seconds since the epoch."""
    skipped_steps: int = 0
    """Because their numbers were not finite or a spike, in the life of the run; `rollbacks`: to a checkpoint, for the same reason."""
    rollbacks: int = 0
    corruption: str = ""
    """A silent corruption: what is looked into, or what was found last."""
    links: int | None = None
    """Of a chain: how many jobs it may take."""
    tried: tuple[str, ...] = ()
    """Of a run whose budget is spent: a line for each attempt since the newest checkpoint."""

    def to_json(self) -> dict[str, Any]:
        return {"v": 1, **self.__dict__, "nodes": list(self.nodes), "tried": list(self.tried)}


def report(seen: Seen, *, word: str | None = None) -> Report:
    """`word`: how a person would name the run in a command; default: its name."""
    run, job, attempt = seen.run, config_of(seen.run), seen.attempt
    shared, local = _durable(run, job)
    tokens = job.tokens_per_step if job else 0
    steps = recent_steps(run)
    last: Mapping[str, Any] = steps[-1].fields if steps else {}
    return Report(
        run=run.name,
        state=seen.state.state,
        reason=_reason(seen, last.get("step", 0), job),
        job_id=seen.facts.job.job_id if seen.facts.job else seen.facts.job_id,
        attempt=attempt.attempt if attempt else None,
        step=last.get("step", 0),
        steps=(job.steps or last.get("steps")) if job else None,
        loss=last.get("loss"),
        tokens_per_s=_speed(steps, tokens),
        nodes=_nodes(seen),
        last_durable_step=max((step for step in (shared, local) if step is not None), default=None),
        shared_step=shared,
        planned_nodes=_planned_nodes(run),
        checked_s_ago=None if seen.age_s is None else round(seen.age_s, 1),
        tokens_per_s_per_gpu=_mean(steps, "tokens_per_s_per_gpu"),
        mfu=_mean(steps, "mfu"),
        evaluation=newest_evaluations(run) if job and job.evaluation.sets else {},
        recent=len(steps),
        skipped=sum(event.fields.get("skipped") is True for event in steps),
        error=_error(seen),
        path=str(run.path),
        next=next_command(seen, word or run.name),
        then=_then(seen, word or run.name),
        category=_category(seen),
        budget=in_words(seen.spent, job.recovery) if job and seen.state.state != "FINISHED" else "",
        eligible_at=_eligible_at(seen),
        links=job.slurm.links if job and job.slurm.continuation == "chain" else None,
        **_numbers(run),
        corruption=_corruption(run),
        tried=tuple(summary(read_attempts(run), seen.spent)) if seen.facts.over else (),
        origin=_origin(run),
    )


def _numbers(run: RunDir) -> dict[str, int]:
    try:
        book = read_book(run.numerics_json)
    except (OSError, ValueError):
        return {}
    return {"skipped_steps": book.skipped, "rollbacks": len(book.rollbacks)}


def _corruption(run: RunDir) -> str:
    exam = read_examination(run.examination_json)
    if exam is None:
        return ""
    if exam.open:
        return f"steps {exam.from_step + 1} to {exam.to_step} are run again ({exam.stage})"
    return f"{exam.finding}: {exam.why}"


def _reason(seen: Seen, step: int, job: JobConfig | None) -> str:
    early = job is not None and job.target is not None and job.target.stop and step < (job.steps or 0)
    return "its target was reached" if early and seen.state.state == "FINISHED" else seen.state.reason


def recent_steps(run: RunDir, limit_bytes: int = _TAIL_BYTES) -> list[Event]:
    """The newest step events of the newest attempt that made any, oldest first: the end of rank 0's file alone is read."""
    steps = [event for event in parse_lines(_tail(run, limit_bytes)) if event.kind == "step"]
    newest = max((event.attempt for event in steps), default=0)
    return [event for event in steps if event.attempt == newest][-_RECENT:]


def newest_evaluations(run: RunDir, limit_bytes: int = _EVALUATION_BYTES) -> dict[str, tuple[int, float | str]]:
    """The newest (step, loss) of each evaluation set, by name, as far as the end of rank 0's file tells."""
    told = parse_lines(b"\n".join(line for line in _tail(run, limit_bytes).split(b"\n") if b'"eval"' in line))
    found = {f["set"]: (f["step"], f["eval_loss"]) for event in told if {"set", "step", "eval_loss"} <= set(f := event.fields)}
    return dict(sorted(found.items()))


def _tail(run: RunDir, limit_bytes: int) -> bytes:
    """The end of rank 0's events; empty where there are none."""
    try:
        with open(run.event_file(0), "rb") as file:
            file.seek(max(0, file.seek(0, 2) - limit_bytes))
            return file.read()
    except OSError:
        return b""


def _mean(steps: Sequence[Event], name: str) -> float | None:
    """Of the recent steps, weighed by their time; None where they do not tell it."""
    told = [(f[name], f["step_s"]) for event in steps if _positive((f := event.fields).get("step_s")) and _positive(f.get(name))]
    return sum(value * seconds for value, seconds in told) / sum(seconds for _, seconds in told) if told else None


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and value > 0


def _speed(steps: Sequence[Event], tokens: int) -> float | None:
    if (told := _mean(steps, "tokens_per_s")) is not None:
        return told
    seconds = [s for event in steps if isinstance(s := event.fields.get("step_s"), (int, float)) and s > 0]
    return tokens * len(seconds) / sum(seconds) if seconds and tokens else None


def _nodes(seen: Seen) -> tuple[str, ...]:
    """Those of the attempt; before there is one, those that Slurm has given."""
    if seen.attempt is not None and seen.facts.attempt_is_of_job:
        return seen.attempt.nodes
    return seen.facts.job.nodes if seen.facts.job else ()


def _planned_nodes(run: RunDir) -> int | None:
    try:
        return read_plan(run.plan_json).nodes
    except ConfigError:
        return None


def _durable(run: RunDir, job: JobConfig | None) -> tuple[int | None, int | None]:
    """The newest in the run folder, and on the nodes' own disks."""
    try:
        if job is not None and job.entry is not None:
            return found.step if (found := newest_foreign(run, job.entry)) is not None else None, None
        local = newest_local(run)
        return newest_durable_step(run.checkpoints), local.step if local is not None else None
    except OSError:
        return None, None


def _origin(run: RunDir) -> str:
    try:
        origin = read_origin(run)
    except CheckpointError as error:
        return str(error)
    return "" if origin is None else str(origin)


def _error(seen: Seen) -> str:
    return seen.state.reason if seen.state.state == "FAILED" else ""


def next_command(seen: Seen, word: str) -> str:
    """What to type now."""
    name = shlex.quote(word)
    if seen.state.state in {"PENDING", "REQUEUED", "RUNNING"}:
        return f"slurmtrain logs -f {name}"
    if seen.state.state == "FINISHED":
        script = (job := config_of(seen.run)) is not None and job.entry is not None
        return f"ls {shlex.quote(str(seen.run.checkpoints))}" if script else f"slurmtrain ckpt list {name}"
    if seen.state.state == "FAILED":
        rank = seen.facts.outcome.rank if seen.facts.outcome and seen.facts.attempt_is_of_job else None
        return f"slurmtrain logs {name}" + (f" --rank {rank}" if rank is not None else "")
    return resume_command(seen, word)


def _category(seen: Seen) -> str | None:
    if held_by_start(seen.facts.job):
        return "prolog_failure"
    return seen.facts.outcome.category if seen.facts.outcome and seen.facts.attempt_is_of_job else None


def _eligible_at(seen: Seen) -> float | None:
    job = seen.facts.job
    return job.start_time if job is not None and job.state == "PENDING" and job.reason == "BeginTime" else None


def _then(seen: Seen, word: str) -> str:
    """After a failure how to go on; of a job that waits what makes it start."""
    job = seen.facts.job
    if seen.state.state == "FAILED":
        return resume_command(seen, word)
    if _eligible_at(seen) is not None and job is not None:
        return f"scontrol update JobId={job.job_id} StartTime=now"
    return f"scontrol release {job.job_id}" if job is not None and "scontrol release" in held(job) else ""


def resume_command(seen: Seen, word: str) -> str:
    """How to go on from the newest checkpoint, in the words that began the run where they are known."""
    run = seen.run
    root_named = word != run.name
    verb = "run" if seen.facts.foreground or not seen.facts.job_id else "submit"
    where = f" --root {shlex.quote(str(run.path.parent))}" if root_named else ""
    return again(run, here=Path.cwd(), root=root_named) or f"slurmtrain {verb} JOB.toml -J {shlex.quote(run.name)}{where} --resume"


def lines(r: Report) -> Iterator[tuple[str, str]]:
    """(label, text) for people."""
    yield "run", f"{r.run}  ({r.path})"
    if r.origin:
        yield "origin", r.origin
    yield "state", f"{r.state}{f': {r.reason}' if r.reason else ''}"
    if r.job_id:
        link = r.job_id.partition("_")[2]
        yield "job", f"{r.job_id}{f', link {link} of {r.links}' if link and r.links else ''}"
    if r.attempt is not None:
        yield "attempt", f"{r.attempt}{f' on {fold(r.nodes)}' if r.nodes else ''}{_fewer(r)}"
    yield from _lost(r)
    yield "step", progress_text(r)
    if r.skipped:
        yield "skipped", f"{r.skipped} of the last {r.recent} steps: gradients overflow, or numbers went wrong"
    if r.skipped_steps or r.rollbacks:
        yield "numbers", f"{counted(r.skipped_steps, 'step')} skipped, {counted(r.rollbacks, 'rollback')}: not finite, or a spike"
    if r.corruption:
        yield "corruption", r.corruption
    if r.evaluation:
        yield "evaluation", ", ".join(f"{name} {number(loss, '.4f')} at step {step}" for name, (step, loss) in r.evaluation.items())
    yield "checkpoint", _checkpoint_text(r)
    if r.error and r.error != r.reason:
        yield "error", r.error
    if r.checked_s_ago is not None:
        yield "Slurm", f"answered {r.checked_s_ago:.0f} s ago"
    yield "next", r.next
    if r.then:
        yield "then", r.then


def _lost(r: Report) -> Iterator[tuple[str, str]]:
    """Why the newest attempt ended, and what has been lost since the newest checkpoint."""
    if r.category is not None and r.category not in {"finished", "stopped"}:
        yield "cause", r.category.replace("_", " ")
    if r.budget:
        yield "lost", r.budget
    for line in r.tried:
        yield "tried", line


def _fewer(r: Report) -> str:
    """Of an elastic run that has fewer nodes than planned."""
    return f", {len(r.nodes)} of {r.planned_nodes} nodes" if r.nodes and r.planned_nodes and len(r.nodes) < r.planned_nodes else ""


def _checkpoint_text(r: Report) -> str:
    if r.last_durable_step is None:
        return "none yet"
    if r.last_durable_step == r.shared_step:
        return f"step {r.shared_step}"
    shared = "none yet" if r.shared_step is None else f"step {r.shared_step}"
    return f"step {r.last_durable_step} on the nodes' own disks; {shared} in the run folder"


def progress_text(r: Report) -> str:
    """57/300  loss 4.1234  12.3k tokens/s"""
    shown = [f"{r.step}/{r.steps if r.steps is not None else '?'}"]
    shown += [f"loss {number(r.loss, '.4f')}"] if r.loss is not None else []
    shown += [f"{format_count(r.tokens_per_s)} tokens/s"] if r.tokens_per_s else []
    shown += [f"MFU {r.mfu:.1%}"] if r.mfu else []
    return "  ".join(shown)


def word_for(run: RunDir, said: str, root: Path | None) -> str:
    """How to name the run in the next command: as it was named; by its path where the root was named too."""
    return str(run.path) if root is not None or "/" in said else run.name
