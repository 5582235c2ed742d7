"""Gives torch's flight recorder a voice: whoever asks at a pipe in the node's memory gets its record as JSON, while the rank hangs.

A thread waits at the pipe; to answer it needs Python, which collectives leave free while they wait.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurmtrain.telemetry.stackdump import flight_dump, flight_pipe

BUFFER = "TORCH_FR_BUFFER_SIZE"
"""How many entries torch keeps; nothing is recorded where it is not set, or 0."""


def answer_flights(folder: Path) -> bool:
    """Answer from now on; False where torch records nothing. Raises OSError."""
    dump = _dump()
    if dump is None or not os.environ.get(BUFFER, "0").isdigit() or os.environ.get(BUFFER, "0") == "0":
        return False
    pipe = flight_pipe(folder, os.getpid())
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe, 0o600)
    threading.Thread(target=_answer, args=(pipe, flight_dump(folder, os.getpid()), dump), name="flight", daemon=True).start()
    return True


def _dump() -> Callable[[], Any] | None:
    import torch._C._distributed_c10d as c10d  # noqa: PLC0415 torch only where a rank calls

    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        if (found := getattr(c10d, name, None)) is not None:
            return found
    return None


def _answer(pipe: Path, answer: Path, dump: Callable[[], Any]) -> None:
    while True:
        with open(pipe, "rb", buffering=0) as asked:  # waits for somebody to open the other end
            if not asked.read(1):
                continue
        told = dump()
        temporary = answer.with_suffix(".tmp")
        temporary.write_bytes(told if isinstance(told, bytes) else str(told).encode())
        temporary.replace(answer)
