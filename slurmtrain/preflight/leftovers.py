"""What killed processes left in a node's memory: segments of MPI, and folders of runs.

MPICH names its segments after job and step (`/dev/shm/mpich_shm_<hash>_<n>`) and attaches to one that is there already. A start that
was killed before it had unlinked them leaves them behind; a requeued job counts its steps from 0 again, so its next world would read
what the killed one wrote, and die of it ("failed to unpack address", "Message truncated").

Ranks and agents of a run beat in a folder of that run (telemetry/heartbeat.py), and remove what is theirs when they leave. What was killed
stays, a few hundred bytes each, until the next start of any run of that user there finds no process of the run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from slurmtrain.clock import Clock
from slurmtrain.telemetry.heartbeat import run_memory

SHM = Path("/dev/shm")  # noqa: S108 named by POSIX shm_open on Linux
PROC = Path("/proc")
PATTERN = "mpich_shm_*"
LOOK_AGAIN_S = 0.2
"""A segment that is being made is unmapped for microseconds."""
OLD_S = 60.0
"""A folder so long untouched is looked into; one that was made just now may be of a process that was not seen."""


def unused_segments(shm: Path, proc: Path) -> dict[Path, int]:
    """Segments of this user that no process has mapped, each with its inode."""
    mine = dict(_owned(shm))
    mapped = _mapped(proc) if mine else set()
    return {path: inode for path, inode in mine.items() if str(path) not in mapped}


def remove_leftovers(clock: Clock, *, shm: Path = SHM, proc: Path = PROC) -> list[Path]:
    """Remove those that were unused at two looks in a row; what was removed."""
    before = unused_segments(shm, proc)
    if not before:
        return []
    clock.sleep(LOOK_AGAIN_S)
    removed = [path for path, inode in unused_segments(shm, proc).items() if before.get(path) == inode]
    for path in removed:
        path.unlink(missing_ok=True)
    return removed


def remove_memory_of_the_dead(clock: Clock, *, memory: Path = SHM, proc: Path = PROC) -> list[Path]:
    """Remove the folders of this user's runs that no process here belongs to; what was removed."""
    old = [path for path in run_memory(PROC, memory).parent.glob("*") if _newest(path) < clock.time() - OLD_S]
    living = {run_memory(Path(run), memory) for run in _runs(proc)} if old else set()
    dead = [path for path in old if path not in living]
    for path in dead:
        shutil.rmtree(path, ignore_errors=True)
    return dead


def _newest(folder: Path) -> float:
    """When anything in a folder was last touched; 0 where it is gone."""
    times = [0.0]
    for path in (folder, *folder.rglob("*")):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def _runs(proc: Path) -> Iterator[str]:
    """SLURMTRAIN_RUN of all processes whose environment this user may read: its own."""
    for environ in proc.glob("[0-9]*/environ"):
        with suppress(OSError):
            for word in environ.read_bytes().split(b"\0"):
                if word.startswith(b"SLURMTRAIN_RUN="):
                    yield os.fsdecode(word.partition(b"=")[2])


def _owned(shm: Path) -> Iterator[tuple[Path, int]]:
    for path in sorted(shm.glob(PATTERN)):
        try:
            found = path.stat()
        except OSError:
            continue
        if found.st_uid == os.geteuid():
            yield path, found.st_ino


def _mapped(proc: Path) -> set[str]:
    """Files that processes have mapped, as far as this user may look: its own processes."""
    files: set[str] = set()
    for maps in proc.glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:
            continue
        files |= {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return files
