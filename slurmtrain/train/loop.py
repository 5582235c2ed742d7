"""What a rank does from its first step to its last: steps, evaluations, checkpoints, and the end that all agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from slurmtrain.checkpoint.saver import Header
from slurmtrain.checkpoint.state import TensorSource
from slurmtrain.clock import Clock
from slurmtrain.errors import OwnershipError, one_line
from slurmtrain.resilience.records import read_attempt
from slurmtrain.runtime.startup import Startup
from slurmtrain.runtime.world import Standing
from slurmtrain.store.origin import borrowed, let_go, read_origin
from slurmtrain.telemetry.exitfile import StopReason, is_follower
from slurmtrain.telemetry.sink import EventSink
from slurmtrain.train.drills import open_drills
from slurmtrain.train.evaluate import Interrupted
from slurmtrain.train.examine import Examiner, open_examiner
from slurmtrain.train.feed import step_batch
from slurmtrain.train.metrics import Figures, pack
from slurmtrain.train.numerics import Fault, Verdict
from slurmtrain.train.pace import Pace, make_pace
from slurmtrain.train.profile import Profiler
from slurmtrain.train.recorder import Recorder
from slurmtrain.train.rollback import go_back, note_skip
from slurmtrain.train.saving import PATIENCE_S, STOP_PATIENCE_S, Saves, Surroundings
from slurmtrain.train.session import Session
from slurmtrain.train.state import Holdings, to_state
from slurmtrain.train.step import StepResult
from slurmtrain.train.target import Cost, seen


@dataclass(frozen=True)
class Ending:
    """How all ranks end. `reason`: of a stop; "target" where the target ended the run before its last step."""

    kind: Literal["finished", "stopped"]
    step: int
    reason: str = ""


class Loop:
    """Trains a session to its end."""

    def __init__(self, session: Session, standing: Standing, sink: EventSink | None, clock: Clock, startup: Startup | None = None) -> None:
        self._session, self._standing, self._clock = session, standing, clock
        self._recorder = Recorder(session, sink, clock, startup)
        here = Surroundings(session.run, session.flag, session.group, clock, self._tell_of_save, session.phases.at)
        own = session.resumed if session.resumed and session.resumed.origin is None else None
        durable, kept = (own.step if own else None), (own.step if own and own.tier == "shared" else None)
        self._saves = Saves(session.saver, self, session.saving, here, durable=durable, kept=kept, pace=self._pace())
        self._holdings = Holdings(session.place, session.built.parameters, session.optimizer, session.average)
        self._held = borrowed(read_origin(session.run), session.job.model.weights) if session.world.rank == 0 else []
        self._counted_at = clock.monotonic()
        self._last: StepResult | None = None
        standing.step = session.progress.step
        world = session.world
        session.step.drills = open_drills(session.run, world.attempt, world.rank, session.built.parameters, clock)
        self._examiner: Examiner | None = None
        self._profiler: Profiler | None = None
        if session.job.metrics.profile is not None:
            trace = session.run.trace(session.world.attempt, session.world.rank)
            self._profiler = Profiler(session.job.metrics.profile, trace, session.world.device, self._recorder.note)

    def _pace(self) -> Pace | None:
        """On rank 0 alone: when saves are due."""
        session, world = self._session, self._session.world
        if session.saving.interval is None or world.rank:
            return None
        return make_pace(session.run, world.attempt, nodes=len(world.nodes), clock=self._clock, tell=self._recorder.emit)

    @property
    def step(self) -> int:
        return self._session.progress.step

    def run(self) -> Ending:
        """Collective. Raises NonFiniteError, SilentCorruptionError and OwnershipError on all ranks alike; any other error ends this rank
        alone.
        """
        try:
            self._recorder.announce()
            self._examiner = open_examiner(self._session, self._recorder.once, self._clock)
            self._saves.prepare()
            ending = self._train()
            if self._profiler is not None:
                self._profiler.close()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if not is_follower(text):
                self._recorder.emit("error", error=one_line(text))
            self._saves.close()
            self._recorder.close(timeout_s=1.0)
            raise
        self._standing.heart.beat("end")
        self._saves.close()
        self._session.batches.close()
        self._recorder.close(timeout_s=5.0)
        return ending

    def _train(self) -> Ending:
        progress, steps, heart = self._session.progress, self._session.job.training.steps, self._standing.heart
        heart.beat("step", step=progress.step)
        stop = self._evaluate() if self._due_before() else None
        while progress.step < steps and not stop and not self._reached():
            with heart.at("save"):  # it may touch the shared folder
                self._saves.look()
            result = self._one_step()
            if result is None:
                continue
            if result.heard.disowned:
                raise self._disowned()
            if self._examiner is not None:
                self._examiner.after(progress.step)
            stop = result.heard.stop or self._measured(result)
            over = progress.step >= steps or self._reached()
            self._saves.after(result.heard, ending=over or stop is not None)
            if over:
                stop = None
                break
        self._saves.finish(STOP_PATIENCE_S if stop else PATIENCE_S)
        if stop:
            self._recorder.emit("stop", step=progress.step, reason=stop)
            return Ending("stopped", progress.step, stop)
        if self._session.local is not None:
            self._session.local.leave()
        why = "target" if progress.step < steps else ""
        self._recorder.emit("finish", step=progress.step, **({"reason": why} if why else {}))
        return Ending("finished", progress.step, why)

    def _one_step(self) -> StepResult | None:
        """None: its numbers went wrong, and the run went back to a checkpoint."""
        session, progress, number = self._session, self._session.progress, self._session.progress.step + 1
        riders = pack(self._figures(), session.world.rank, session.world.size)
        start, position = self._clock.monotonic(), self._seek()
        if self._profiler is not None:
            self._profiler.before(number)
        with session.phases.at("data"):
            batch = step_batch(next(session.batches), session.world.device)
        result = session.step(number, batch, riders, lr_factor=session.numerics.book.lr_factor(number))
        if result.fault is not None and not result.heard.disowned:
            verdict = session.numerics.failed(number)
            if verdict != "skip":
                self._go_back(number, result.fault, verdict)
                return None
            note_skip(session)
        elif not result.skipped:
            session.numerics.passed(result.loss)
        progress.step, progress.position = number, session.batches.position
        progress.tokens += result.tokens
        self._standing.step, self._last = number, result
        self._standing.heart.beat("step", step=number)
        seconds = self._clock.monotonic() - start
        if self._profiler is not None:
            self._profiler.after(number)
        places = (progress.position - position) * session.job.training.sequence_length
        self._recorder.step(number, result, seconds=seconds, places=places)
        return result

    def _seek(self) -> int:
        """Where the next step reads: past what a way back to a checkpoint left out."""
        batches = self._session.batches
        if (at := self._session.numerics.book.position(batches.position)) != batches.position:
            batches.seek(at, self._session.progress.step)
        return at

    def _go_back(self, number: int, fault: Fault, verdict: Verdict) -> None:
        """To the last good checkpoint. Raises NonFiniteError where the verdict is the end, or there is no such checkpoint."""
        start, session = self._clock.monotonic(), self._session
        with self._standing.heart.at("load"):
            way = go_back(session, self._saves, fault, number, verdict=verdict, clock=self._clock)
        self._standing.step, self._last, self._counted_at = way.to, None, self._clock.monotonic()
        if self._examiner is not None:
            self._examiner.went_back(way.to)
        self._recorder.rollback(way, fault.text, self._clock.monotonic() - start)

    def _figures(self) -> Figures | None:
        """Of the step before, where this attempt made it; what was measured before its first step belongs to none."""
        last = self._last
        figures = self._session.observer.take(self._session.progress.step, None if last is None else last.own_loss)
        if last is None:
            return None
        self._standing.heart.beat(work_s=figures.work_s)
        return figures

    def _measured(self, result: StepResult) -> StopReason | None:
        """After a step: the evaluation that is due, the target on the training's own loss; why an evaluation was left."""
        session, step = self._session, self._session.progress.step
        if not result.skipped:
            session.marks.measured("loss", result.loss)
            self._toward_target("loss", result.loss)
        due = session.evaluator is not None and step % session.job.evaluation.every_steps == 0
        return self._evaluate() if due and not result.heard.stop else None

    def _due_before(self) -> bool:
        """Before the first step where that is asked; or after a resume, when a stop kept the last step from being evaluated."""
        session, step = self._session, self._session.progress.step
        if session.evaluator is None or session.marks.evaluated == step:
            return False
        return session.job.evaluation.first if step == 0 else step % session.job.evaluation.every_steps == 0

    def _evaluate(self) -> StopReason | None:
        """Why it was left before its end, where it was."""
        session, step = self._session, self._session.progress.step
        assert session.evaluator is not None
        with session.observer.evaluation():
            results = session.evaluator()
        if isinstance(results, Interrupted):
            if results.disowned:
                raise self._disowned()
            return results.stop
        session.marks.evaluated = step
        for one in results:
            self._recorder.evaluation(step, one)
            session.marks.measured(one.name, one.loss)
            self._toward_target(one.name, one.loss)
        return None

    def _toward_target(self, metric: str, value: float) -> None:
        session, goal, marks = self._session, self._session.job.target, self._session.marks
        if goal is None or goal.metric != metric:
            return
        marks.target, now = seen(marks.target, goal, value)
        if now:
            self._count_time()
            cost = Cost(session.progress.tokens, session.progress.seconds, marks.gpu_s, self._elapsed()).to_fields()
            self._recorder.target(step=session.progress.step, metric=metric, below=goal.below, value=value, **cost)

    def _reached(self) -> bool:
        """Whether the target ends the run."""
        goal = self._session.job.target
        return goal is not None and goal.stop and self._session.marks.target.reached

    def _elapsed(self) -> float:
        """Seconds since the run's first attempt began, by the wall; since this one's where its record is not there."""
        first = read_attempt(self._session.run, 1)
        return self._clock.time() - first.t_start if first is not None else self._session.progress.seconds

    def _count_time(self) -> None:
        now = self._clock.monotonic()
        self._session.progress.seconds += now - self._counted_at
        self._session.marks.gpu_s += (now - self._counted_at) * self._session.world.size
        self._counted_at = now

    def verify(self) -> None:
        """Before a save. Raises SilentCorruptionError, on all ranks alike, where replicas differ."""
        if self._examiner is not None:
            self._examiner.compare(self._session.progress.step)

    def header(self) -> Header:
        session, progress = self._session, self._session.progress
        self._count_time()
        scale = session.scaler.state() if session.scaler is not None else {}
        more = {**session.marks.to_state(), **session.numerics.to_state(), **scale, **session.made_by}
        state = to_state(progress, session.source, session.optimizer.updates, more)
        return Header(
            progress.step, session.world.attempt, progress.tokens, self._clock.time(), session.plan.model_dump(mode="json"), state
        )

    def source(self) -> TensorSource:
        return self._holdings.source()

    def _tell_of_save(self, kind: str, **fields: Any) -> None:
        """On rank 0. With a checkpoint of its own a run no longer needs the one that it began with."""
        self._recorder.emit(kind, **fields)
        while kind == "save" and self._held:
            let_go(self._held.pop(), self._session.run)

    def _disowned(self) -> OwnershipError:
        return OwnershipError(f"{self._session.run.path}: another attempt owns this run now: leaving without saving")
