"""squeue's answer, shared by all processes of a user: slurmctld is asked once per user and 10 s, whoever asks.

One file per user and cluster, published whole; a lock beside it lets one process ask while the others wait for its answer.
Where the folder cannot be used (read-only home, no locks on that file system) each process asks for itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from slurmtrain.atomic import Disk, SystemDisk
from slurmtrain.clock import Clock

WAIT_S, POLL_S = 15.0, 0.2
Answer = tuple[float, str]
"""(seconds since the epoch when it was asked for, text)."""


class QueueCache:
    """An answer with its age. `folder`: None shares nothing; `key`: user and cluster."""

    def __init__(self, folder: Path | None, key: str, clock: Clock, disk: Disk | None = None) -> None:
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        folder = folder or Path(os.devnull, "none")
        self._folder, self._clock, self._disk = folder, clock, disk or SystemDisk()
        self._file, self._lock = folder / f"squeue-{name}.json", folder / f"squeue-{name}.lock"
        self._own: Answer | None = None

    def get(self, max_age_s: float, ask: Callable[[], str]) -> tuple[float, str]:
        """(age in seconds, text): an answer of any process that is young enough, else that of `ask`, whose errors pass through."""
        oldest = self._clock.time() - max_age_s
        found = self._newest(oldest)
        if found is None:
            with self._turn() as mine:
                found = self._newest(oldest) if mine else self._wait_for_other(oldest)
                found = found or self._ask(ask)
        return max(0.0, self._clock.time() - found[0]), found[1]

    def _ask(self, ask: Callable[[], str]) -> Answer:
        self._own = (self._clock.time(), ask())
        with contextlib.suppress(OSError):
            self._disk.write(self._file, json.dumps({"v": 1, "t": self._own[0], "text": self._own[1]}).encode())
        return self._own

    def _newest(self, oldest: float) -> Answer | None:
        """The newest answer known, unless it is older than `oldest`, or from the future (another machine's clock)."""
        now = self._clock.time()
        known = [answer for answer in (self._own, self._read()) if answer is not None and oldest < answer[0] <= now]
        return max(known, default=None)

    def _read(self) -> Answer | None:
        try:
            raw = json.loads(self._file.read_bytes())
            return float(raw["t"]), str(raw["text"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _wait_for_other(self, oldest: float) -> Answer | None:
        limit = self._clock.monotonic() + WAIT_S
        while self._clock.monotonic() < limit:
            self._clock.sleep(POLL_S)
            found = self._newest(oldest)
            if found is not None:
                return found
        return None

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        """Whether it is this process's turn to ask."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield True
            return
        try:
            yield _locked(fd)
        finally:
            os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
