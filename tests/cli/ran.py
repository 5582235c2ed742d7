"""Runs as jobs leave them behind: attempts, events, checkpoints, logs; for tests of the commands that look."""

from __future__ import annotations

import os
import platform
from typing import Any

from slurmtrain.resilience.records import AttemptRecord, Outcome, Owner, write_attempt
from slurmtrain.rundir import RunDir
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.history import add_act
from tests.cli.desk import Desk


def submitted(desk: Desk, name: str = "job", *, state: str = "RUNNING", reason: str = "None") -> tuple[RunDir, str]:
    """A run and its job's id."""
    result = desk.submit("-J", name, "--parsable")
    assert result.exit_code == 0, result.output
    job_id = result.stdout.strip()
    desk.slurm.change(job_id, state=state, reason=reason)
    return desk.run(name), job_id


def attempted(desk: Desk, run: RunDir, job_id: str, *, number: int = 1, steps: range = range(1, 6), outcome: Outcome | None = None) -> None:
    """An attempt of two nodes with steps, a checkpoint of the last but one, and logs."""
    run.attempt(number).create()
    now = desk.clock.time()
    record = AttemptRecord(number, job_id, number - 1, now, ("n2", "n1"), (), 4, 8, "3.11", {}, "0.1.0", outcome)
    write_attempt(run, desk.disk, record)
    add_act(run, desk.disk, now, "start", job_id=job_id, detail=f"attempt {number}")
    for step in steps:
        fields = {"step": step, "loss": 5 - step / 10, "grad_norm": 1.0, "lr": 1e-3, "tokens": step * 100, "step_s": 0.5}
        write_event(run, Event("step", now + step, number, 0, fields))
    if len(steps) > 1:
        folder = run.checkpoint(steps[-2])
        folder.mkdir(exist_ok=True)
        (folder / MANIFEST_NAME).write_bytes(Manifest(steps[-2], number, 0, {}, {}, {}).to_json())
    for index, node in enumerate(("n1", "n2")):
        run.attempt(number).node_log(index).write_text(f"ranks of {node} in attempt {number}\n")


def write_event(run: RunDir, event: Event) -> None:
    with open(run.event_file(0), "a") as file:
        file.write(event.to_line())


def owned(desk: Desk, run: RunDir, job_id: str, *, host: str | None = None, pid: int | None = None, **more: Any) -> None:
    owner = Owner(job_id, 0, 1, platform.node() if host is None else host, os.getpid() if pid is None else pid, desk.clock.time(), **more)
    desk.disk.write(run.owner_json, owner.to_json())
