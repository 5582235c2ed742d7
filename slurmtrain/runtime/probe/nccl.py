"""NCCL's own words, kept in memory: which transports it chose is read from them (preflight/transport.py).

The file that NCCL writes into has no name in any folder, so that nothing is left of it and nobody else can have put it there.
"""

from __future__ import annotations

import os

from slurmtrain.preflight.transport import GLOO, in_order, transports


class Words:
    """`backend`: gloo has nothing to say."""

    def __init__(self, backend: str) -> None:
        self._gloo = backend == GLOO
        self._file = os.memfd_create("nccl")
        self._read = 0
        self._all: set[str] = set()

    def environment(self) -> dict[str, str]:
        """For NCCL, before it starts. Time-outs and errors are ours to handle: torch's own watchdog would end the process."""
        return {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH",
            "NCCL_DEBUG_FILE": f"/proc/self/fd/{self._file}",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
            "TORCH_NCCL_ENABLE_MONITORING": "0",
        }

    def of_this_group(self) -> str:
        """Transports since the last call, with blanks between them: of the group that an order has formed."""
        size = os.fstat(self._file).st_size
        text = os.pread(self._file, size - self._read, self._read).decode(errors="replace")
        self._read = size
        found = (GLOO,) if self._gloo else transports(text)
        self._all |= set(found)
        return " ".join(found)

    def of_all(self) -> str:
        """Transports of all groups so far."""
        return " ".join(in_order(self._all))
