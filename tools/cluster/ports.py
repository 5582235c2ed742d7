"""Free TCP ports, in blocks, so that clusters that start at the same moment do not meet."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from .spec import MAX_NODES, DevclusterError, Ports

FIRST, LAST = 17000, 31000
"""Below Linux's ephemeral ports (32768 on)."""
BLOCK = MAX_NODES + 4


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def hold(name: str) -> socket.socket | None:
    """A lock of this machine under a name, gone with the process and without a file; None where it is taken."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0slurmtrain-devcluster-{name}")
    except OSError:
        lock.close()
        return None
    return lock


@contextmanager
def free_block(count: int) -> Iterator[Ports]:
    """`count` free ports in a row, reserved against other `up`s until the block is left."""
    for base in range(FIRST, LAST, BLOCK):
        lock = hold(f"ports-{base}")
        if lock is None:
            continue
        with lock:
            if all(_free(base + i) for i in range(count)):
                yield Ports(base)
                return
    raise DevclusterError(f"no {count} free TCP ports in a row between {FIRST} and {LAST}")
