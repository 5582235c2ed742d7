"""Runs whose ranks meet faults on purpose."""

from __future__ import annotations

from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.faults import Fault, faults_bytes


def doomed(run: RunDir, *faults: Fault) -> None:
    """Let the run's ranks meet these."""
    run.faults_json.write_bytes(faults_bytes(faults))


def nan(step: int, *, rank: int = 0, attempt: int = 1) -> Fault:
    return Fault("nan", rank, step, attempt)


def flip(step: int, rank: int, *, attempt: int = 1, bit: int = 3) -> Fault:
    return Fault("bitflip", rank, step, attempt, bit)
