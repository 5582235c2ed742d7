"""What a rank tells: events into its node's file, and of rank 0 the numbers to whatever draws curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slurmtrain.clock import Clock
from slurmtrain.parallel.bubble import expected_bubble
from slurmtrain.runtime.startup import Startup
from slurmtrain.telemetry.interventions import Rollback
from slurmtrain.telemetry.rates import rates
from slurmtrain.telemetry.sink import EventSink
from slurmtrain.train.evaluate import Evaluation
from slurmtrain.train.metrics import unpack
from slurmtrain.train.numerics import Fault
from slurmtrain.train.session import Resumed, Session
from slurmtrain.train.step import StepResult
from slurmtrain.train.tensorboard import TensorBoard
from slurmtrain.train.wandb import WeightsAndBiases
from slurmtrain.train.writers import Background, Writer


class Recorder:
    """Local rank 0 of each node has a `sink`; steps, evaluations, skips, targets and saves are rank 0's alone."""

    def __init__(self, session: Session, sink: EventSink | None, clock: Clock, startup: Startup | None = None) -> None:
        self._session, self._sink, self._clock, self._startup = session, sink, clock, startup
        self._first = session.world.rank == 0
        self._writers = self._opened() if self._first else []

    def emit(self, kind: str, **fields: Any) -> None:
        if self._sink is not None:
            self._sink.emit(kind, **fields)

    def note(self, text: str) -> None:
        """One line that a person should read; no fault."""
        self.emit("note", text=text)

    def announce(self) -> None:
        session, plan, resumed = self._session, self._session.plan, self._session.resumed
        layout = {axis: getattr(plan, axis) for axis in ("tp", "pp", "cp", "ep", "dp")} | {"dp_mode": plan.dp_mode}
        pipeline: dict[str, Any] = {}
        if plan.pp > 1:
            bubble = expected_bubble(plan.schedule, plan.pp, plan.vp, plan.microbatches)
            pipeline = {"schedule": plan.schedule, "vp": plan.vp, "expected_bubble": round(bubble, 4)}
        yard = session.yard.to_fields()
        came_from = resumed.step if resumed else None
        self.emit("start", world=plan.world, layout=layout, **pipeline, **yard, resumed_from=came_from, **self._times(resumed))
        if self._first:
            for step, why in session.asides:
                self.emit("aside", step=step, why=why)
        if resumed:
            self._loaded(resumed)
        for text in session.notes:
            self.note(text)

    def _times(self, resumed: Resumed | None) -> dict[str, Any]:
        """What the start took, by stage, until now; loading is told apart from the building around it."""
        if self._startup is None:
            return {}
        self._startup.passed("build")
        self._startup.was("load", "build", resumed.seconds if resumed else 0.0)
        return {"startup": self._startup.fields()}

    def _loaded(self, resumed: Resumed) -> None:
        origin = {} if resumed.origin is None else {"origin": str(resumed.origin)}
        passed = [list(one) for one in resumed.passed_over]
        self.emit("load", step=resumed.step, seconds=resumed.seconds, passed_over=passed, tier=resumed.tier, **origin)
        if resumed.changes and self._first:
            self.emit("change", step=resumed.step, keys={one.key: [one.before, one.after] for one in resumed.changes})

    def step(self, number: int, result: StepResult, *, seconds: float, places: int) -> None:
        """`places`: tokens of the global batch, with and without a loss: what the hardware worked on."""
        if not self._first:
            return
        session = self._session
        fields: dict[str, Any] = {"step": number, "loss": result.loss, "grad_norm": result.grad_norm, "lr": result.lr}
        fields |= {"tokens": session.progress.tokens, "step_s": seconds}
        fields |= rates(session.yard, tokens=places, seconds=seconds, devices=session.plan.world)
        if session.scaler is not None:
            fields["scale"] = result.scale
        previous = unpack(result.passengers, session.world.size)
        if previous:
            fields["previous"] = {"step": number - 1, **previous}
        if result.skipped:
            fields["skipped"] = True
        self._tell("step", fields)
        if result.fault is not None:
            self._skipped(number, result, result.fault)
        elif result.skipped and session.scaler is not None:
            scales = {"scale": result.scale, "next_scale": session.scaler.scale}
            self.emit("skip", step=number, cause="overflow", **scales, grad_norm=result.grad_norm)

    def _skipped(self, number: int, result: StepResult, fault: Fault) -> None:
        numerics = self._session.numerics
        counts = {"in_row": numerics.in_row, "skip_steps": numerics.config.skip_steps, "skipped": numerics.book.skipped}
        self.emit("skip", step=number, cause=fault.cause, why=fault.text, loss=result.loss, grad_norm=result.grad_norm, **counts)

    def rollback(self, way: Rollback, why: str, seconds: float) -> None:
        """The run went back to a checkpoint."""
        if not self._first:
            return
        numerics = self._session.numerics
        changed: dict[str, Any] = {}
        if way.lr_factor != 1.0:
            changed |= {"lr_factor": way.lr_factor, "until": way.until}
        if way.left_out is not None:
            changed["left_out"] = list(way.left_out)
        counts = {"number": len(numerics.book.rollbacks), "rollbacks": numerics.config.rollbacks}
        self.emit(
            "rollback", step=way.step, began=way.began, to=way.to, cause=way.cause, why=why, changed=changed, seconds=seconds, **counts
        )

    def evaluation(self, step: int, one: Evaluation) -> None:
        if self._first:
            self._tell("eval", {"step": step, "set": one.name, "eval_loss": one.loss, "tokens": one.tokens, "seconds": one.seconds})

    def target(self, **fields: Any) -> None:
        self.once("target", **fields)

    def once(self, kind: str, **fields: Any) -> None:
        """An event about the whole world: rank 0's alone."""
        if self._first:
            self.emit(kind, **fields)

    def close(self, timeout_s: float) -> None:
        end = self._clock.monotonic() + timeout_s
        for writer in self._writers:
            writer.close(max(0.0, end - self._clock.monotonic()))
        if self._sink is not None:
            self._sink.close(max(1.0, end - self._clock.monotonic()))

    def _tell(self, kind: str, fields: dict[str, Any]) -> None:
        self.emit(kind, **fields)
        for writer in self._writers:
            writer.put(kind, fields)

    def _opened(self) -> list[Background]:
        run, metrics, first = self._session.run, self._session.job.metrics, self._session.progress.step + 1
        opened: dict[str, Callable[[], Writer]] = {}
        if metrics.tensorboard:
            opened["tensorboard"] = lambda: TensorBoard(run.tensorboard, first)
        if metrics.wandb is not None:
            config, project = self._session.job.model_dump(mode="json", exclude={"environment"}), metrics.wandb
            opened["wandb"] = lambda: WeightsAndBiases(project, run, config, self.note)
        return [Background(name, make, self.note) for name, make in opened.items()]
