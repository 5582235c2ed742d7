"""Ranks that save asynchronously, as threads of a test; each has a fork server that later tests use, too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slurmtrain.checkpoint.forkserver import ForkServer
from slurmtrain.checkpoint.saver import Outcome
from slurmtrain.checkpoint.staged import AsyncSaver
from slurmtrain.rundir import RunDir
from tests.checkpoint.arrays import terms
from tests.checkpoint.doors import until
from tests.fakes.thread_group import ThreadGroup, run_ranks


class Kept(ForkServer):
    """One that a saver does not end."""

    def close(self) -> None:
        return


_SERVERS: dict[int, Kept] = {}
_LOCK = threading.Lock()


def server_of(rank: int) -> ForkServer:
    with _LOCK:
        if rank not in _SERVERS or not _SERVERS[rank].alive:
            _SERVERS[rank] = Kept()
        return _SERVERS[rank]


def end_servers() -> None:
    while _SERVERS:
        ForkServer.close(_SERVERS.popitem()[1])


def savers(
    run: RunDir, size: int, body: Callable[[AsyncSaver, ThreadGroup], Any], *, sizes: Sequence[int] = (), door: Any = "", **more: Any
) -> list[Any]:
    """What `body(saver, group)` gives on each rank. `sizes`: of the runs of ranks that share a writer; `door`: of all, or {rank: door}.

    `more`: fields of Terms; `orphan_s`.
    """
    orphan = {"orphan_s": more.pop("orphan_s")} if "orphan_s" in more else {}

    def one(group: ThreadGroup) -> Any:
        mates = group.part(sizes) if sizes else None
        here = door.get(group.rank, "") if isinstance(door, dict) else door
        saver = AsyncSaver(terms(run, **more), group, mates, server=server_of(group.rank), door=here, **orphan)
        try:
            return body(saver, group)
        finally:
            saver.close()

    return run_ranks(size, one)


def told(saver: AsyncSaver) -> Outcome:
    """The next outcome that `poll` tells."""
    heard: list[Outcome] = []

    def come() -> bool:
        heard.extend(saver.poll())
        return bool(heard)

    until(come)
    assert len(heard) == 1, heard
    return heard[0]


def writer_pid(saver: AsyncSaver) -> int:
    assert saver._link._writer is not None
    return saver._link._writer.pid


def gone(pid: int) -> bool:
    """Whether a process has ended, all its threads too; one that nobody has waited for yet counts as ended."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return len(threads) <= 1 and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def names(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir()) if run.checkpoints.exists() else []
