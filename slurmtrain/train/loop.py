"""What a rank does from its first step to its last: steps, events, checkpoints, and the end that all agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from slurmtrain.atomic import SystemDisk
from slurmtrain.checkpoint.state import save_checkpoint
from slurmtrain.clock import Clock
from slurmtrain.errors import NonFiniteError, OwnershipError, one_line
from slurmtrain.runtime.seeds import rng_state
from slurmtrain.runtime.world import Standing
from slurmtrain.telemetry.exitfile import is_follower
from slurmtrain.telemetry.sink import EventSink
from slurmtrain.train.ownership import check_owner
from slurmtrain.train.session import Session
from slurmtrain.train.state import owned, rng_entries, to_state
from slurmtrain.train.step import StepResult


@dataclass(frozen=True)
class Ending:
    """How all ranks end. `reason`: of a stop."""

    kind: Literal["finished", "stopped"]
    step: int
    reason: str = ""


class Loop:
    """Trains a session to its end. Local rank 0 of each node writes events (`sink`), rank 0 alone the steps."""

    def __init__(self, session: Session, standing: Standing, sink: EventSink | None, clock: Clock) -> None:
        self._session, self._standing, self._sink, self._clock = session, standing, sink, clock
        self._durable = session.resumed.step if session.resumed else None
        standing.step = session.progress.step

    def run(self) -> Ending:
        """Collective. Raises NonFiniteError and OwnershipError on all ranks alike; any other error ends this rank alone."""
        try:
            self._announce()
            ending = self._train()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if not is_follower(text):
                self._emit("error", error=one_line(text))
            self._close(timeout_s=1.0)
            raise
        self._close(timeout_s=5.0)
        return ending

    def _train(self) -> Ending:
        progress, steps = self._session.progress, self._session.job.training.steps
        while progress.step < steps:
            result = self._one_step()
            if result.disowned:
                raise OwnershipError(f"{self._session.run.path}: another attempt owns this run now: leaving without saving")
            if progress.step >= steps:
                break
            if result.stop or progress.step % self._session.job.checkpoint.every_steps == 0:
                self._save()
            if result.stop:
                self._emit("stop", step=progress.step, reason=result.stop)
                return Ending("stopped", progress.step, result.stop)
        if self._durable != progress.step:
            self._save()
        self._emit("finish", step=progress.step)
        return Ending("finished", progress.step)

    def _one_step(self) -> StepResult:
        session, start = self._session, self._clock.monotonic()
        progress, number = session.progress, session.progress.step + 1
        batch = next(session.batches)
        device = session.world.device
        try:
            result = session.step(number, _on(batch.inputs, device), _on(batch.labels, device))
        except NonFiniteError as error:
            durable = "there is none" if self._durable is None else f"step {self._durable}"
            raise NonFiniteError(f"{error}; nothing was updated; last durable checkpoint: {durable}") from None
        progress.step, progress.position = number, session.batches.position
        progress.tokens += result.tokens
        self._standing.step = number
        if session.world.rank == 0:
            numbers = {"loss": result.loss, "grad_norm": result.grad_norm, "lr": result.lr, "tokens": progress.tokens}
            self._emit("step", step=number, **numbers, step_s=self._clock.monotonic() - start)
        return result

    def _save(self) -> None:
        session, attempt = self._session, self._session.world.attempt
        saved = save_checkpoint(
            session.run,
            step=session.progress.step,
            attempt=attempt,
            tokens=session.progress.tokens,
            layout=session.plan.model_dump(mode="json"),
            entries=[*owned(session.built.parameters, session.optimizer), *rng_entries(session.place, rng_state())],
            state=to_state(session.progress, session.source, session.optimizer.updates),
            group=session.group,
            disk=SystemDisk(),
            owner_check=lambda: check_owner(session.run, attempt),
            keep=session.job.checkpoint.keep,
        )
        self._durable = session.progress.step
        notes = {"notes": list(saved.notes)} if saved.notes else {}
        self._emit("save", step=self._durable, seconds=saved.seconds, bytes=saved.bytes, **notes)

    def _announce(self) -> None:
        session, plan = self._session, self._session.plan
        layout = {axis: getattr(plan, axis) for axis in ("tp", "pp", "cp", "ep", "dp")} | {"dp_mode": plan.dp_mode}
        resumed = session.resumed
        self._emit("start", world=plan.world, layout=layout, resumed_from=resumed.step if resumed else None)
        if resumed:
            self._emit("load", step=resumed.step, seconds=resumed.seconds, passed_over=[list(one) for one in resumed.passed_over])

    def _emit(self, kind: str, **fields: Any) -> None:
        if self._sink is not None:
            self._sink.emit(kind, **fields)

    def _close(self, timeout_s: float) -> None:
        if self._sink is not None:
            self._sink.close(timeout_s)


def _on(array: np.ndarray, device: torch.device) -> Tensor:
    """[micro-batches, micro-batch, T] as [N, T] on the device."""
    return torch.from_numpy(array).flatten(0, 1).to(device, non_blocking=True)
