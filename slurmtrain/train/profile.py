"""Traces of some steps for torch's profiler, and the same steps marked for Nsight Systems; never a reason for a run to end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from slurmtrain.errors import one_line


class Profiler:
    """Records steps first..last of this rank and leaves the trace in `path` (Chrome's format: Perfetto and chrome://tracing).

    Under `nsys profile --capture-range=cudaProfilerApi` it opens and closes the range instead: the two cannot share the GPU's
    counters. `note` gets one line when a trace could not be made.
    """

    def __init__(
        self, steps: tuple[int, int], path: Path, device: torch.device, note: Callable[[str], None], *, nsight: bool | None = None
    ) -> None:
        self._first, self._last = steps
        self._path, self._cuda, self._note = path, device.type == "cuda", note
        self._nsight = "NSYS_PROFILING_SESSION_ID" in os.environ if nsight is None else nsight
        self._running: Any = None

    def before(self, step: int) -> None:
        """A step begins; a run that was resumed in the middle records what is left of the range."""
        if self._running is not None or not self._first <= step <= self._last:
            return
        try:
            self._running = self._started()
        except (RuntimeError, ImportError) as error:
            self._give_up(f"no profile: {one_line(str(error))}")

    def after(self, step: int) -> None:
        """A step has ended, or training does, whatever the step."""
        if self._running is None or step < self._last:
            return
        running, self._running = self._running, None
        try:
            self._ended(running)
        except (OSError, RuntimeError) as error:
            self._give_up(f"the profile was not written: {one_line(str(error))}")

    def close(self) -> None:
        """Write what there is when training ends inside the range."""
        self.after(self._last)

    def _give_up(self, why: str) -> None:
        self._running, self._first = None, self._last + 1
        self._note(why)

    def _started(self) -> Any:
        if self._cuda and self._nsight:
            torch.cuda.cudart().cudaProfilerStart()
            return torch.cuda.cudart()
        from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415 loads what only profiled runs need

        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
        profiler = profile(activities=kinds, profile_memory=True, record_shapes=True)
        profiler.__enter__()
        return profiler

    def _ended(self, running: Any) -> None:
        if self._cuda and self._nsight:
            running.cudaProfilerStop()
            return
        if self._cuda:
            torch.cuda.synchronize()
        running.__exit__(None, None, None)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f".{self._path.name}")
        running.export_chrome_trace(str(partial))
        partial.replace(self._path)
