"""Weights & Biases, where its package can be imported (the extra `wandb`). Without its service the run is kept in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slurmtrain.errors import one_line
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.tracking import run_id

_INIT_S = 60


class WeightsAndBiases:
    """One run of the service for all attempts of a run: its id follows from the folder's path.

    Where the service cannot be reached, or nobody has logged in, the files stay in the run folder, and `wandb sync` sends them later;
    `note` gets a line that says so. WANDB_MODE and the other variables of wandb's own are obeyed.
    """

    def __init__(self, project: str, run: RunDir, config: Mapping[str, Any], note: Callable[[str], None]) -> None:
        import wandb  # noqa: PLC0415 an optional extra

        def begun(mode: str | None) -> Any:
            # No copy of stdout, and no lines of its own in it: the supervisor's are the run's log.
            settings = wandb.Settings(console="off", silent=True, init_timeout=_INIT_S)
            where = {"project": project, "name": run.name, "dir": str(run.path)}
            return wandb.init(**where, id=run_id(run), resume="allow", config=dict(config), mode=mode, settings=settings)

        try:
            self._run = begun(None)
        except Exception as error:  # noqa: BLE001 every release of wandb has other errors for this
            note(f"wandb keeps its files in {run.wandb} (`wandb sync` sends them later): {one_line(str(error), 120)}")
            self._run = begun("offline")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        # A step is a number like the others: after a restart steps come again, which wandb's own count would refuse.
        self._run.log({"step": step, **numbers})

    def close(self) -> None:
        self._run.finish()
