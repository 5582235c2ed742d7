"""A rank's sign of life: 128 bytes in node-local memory, written by plain stores, so that no lock, file system or torch can hold it up.

A record counts only when its checksum fits: a reader that comes between two stores looks again. Collectives are counted beside it, in two
words of 8 bytes that are stored whole (how many, and when the newest): there are hundreds in a step. Times are of the node's monotonic
clock; only processes of the same node compare them.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import socket
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

from slurmtrain.clock import Clock
from slurmtrain.telemetry.stackdump import leave_no_trace, listen_for_stacks

Phase = Literal["init", "load", "step", "wait", "save", "eval", "data", "end"]
"""init: until the world is up. load: first values or a checkpoint. step: computing, and the collectives in it. wait: in the step's one
reduction, with all of its own work done. save, eval, data: as they say. end: leaving."""
PHASES: tuple[Phase, ...] = get_args(Phase)
MEMORY = Path("/dev/shm")  # noqa: S108 node-local memory is the point; the folder below is the user's own
_LAYOUT = struct.Struct("<4sHHIIQQddd")
_COUNT, _WHEN, _END = 64, 72, 80
"""Where the count of collectives stands, and the time of the newest; in the machine's own order of bytes."""
_MAGIC = b"STHB"
_SIZE = 128
_LOOKS = 5
_NAME = re.compile(r"rank-(\d{5,})")
LAUNCHER_RANKS = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
"""Variables in which a launcher tells a process its number."""


@dataclass(frozen=True)
class Beat:
    """`t`: of this sign; `since`: of the beginning of the phase; both monotonic seconds. `step`: last one completed.

    `entered`: collectives that the rank has entered so far (the fewest: who kept the others waiting); `work_s`: what the last step took
    on this rank without waiting for others.
    """

    rank: int
    attempt: int
    pid: int
    phase: Phase
    step: int
    t: float
    since: float
    entered: int = 0
    work_s: float = 0.0


class Heart(Protocol):
    """What a rank beats with."""

    def beat(self, phase: Phase | None = None, *, step: int | None = None, work_s: float | None = None) -> None:
        """Be alive; a phase that is given begins now."""

    def enter(self) -> None:
        """Count a collective, before it is entered."""

    def become(self, rank: int) -> None:
        """The world's number of this rank is known now; until then it goes by the launcher's."""

    def close(self) -> None:
        """An end that all ranks agreed on: nobody needs to look for this rank any more."""

    def at(self, phase: Phase) -> AbstractContextManager[None]:
        """Be in a phase for a while, then in the one before."""


class SilentHeart:
    """Where nobody listens: tests, tools, nodes without memory for it."""

    def beat(self, phase: Phase | None = None, *, step: int | None = None, work_s: float | None = None) -> None:
        pass

    def enter(self) -> None:
        pass

    def become(self, rank: int) -> None:
        pass

    def close(self) -> None:
        pass

    def at(self, phase: Phase) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()


class SharedHeart:
    """Beats into a file of node-local memory. Raises OSError where it cannot be made."""

    def __init__(self, folder: Path, rank: int, attempt: int, clock: Clock, *, pid: int | None = None) -> None:
        """`pid`: of the process that this is the heart of, where it is not this one."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / f"rank-{rank:05d}"
        self._clock, self._rank, self._attempt, self._pid = clock, rank, attempt, pid or os.getpid()
        self._phase: Phase = "init"
        self._since = clock.monotonic()
        self._step, self._entered, self._work_s = 0, 0, 0.0
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, _SIZE)
            self._memory = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)
        self._memory[:] = bytes(_SIZE)
        words = memoryview(self._memory)
        self._count, self._when = words[_COUNT:_WHEN].cast("Q"), words[_WHEN:_END].cast("d")
        self.beat()

    def beat(self, phase: Phase | None = None, *, step: int | None = None, work_s: float | None = None) -> None:
        now = self._clock.monotonic()
        if phase is not None:
            self._phase, self._since = phase, now
        self._step = self._step if step is None else step
        self._work_s = self._work_s if work_s is None else work_s
        body = _LAYOUT.pack(
            *(_MAGIC, 1, PHASES.index(self._phase), self._rank, self._attempt, self._pid),
            *(self._step, now, self._since, self._work_s),
        )
        self._memory[: len(body) + 4] = body + zlib.crc32(body).to_bytes(4, "little")

    def enter(self) -> None:
        self._entered += 1
        self._count[0], self._when[0] = self._entered, self._clock.monotonic()

    def become(self, rank: int) -> None:
        self._rank = rank
        self.beat()

    def close(self) -> None:
        self.beat("end")
        self.path.unlink(missing_ok=True)
        leave_no_trace(self.path.parent, self._pid)

    @contextmanager
    def at(self, phase: Phase) -> Iterator[None]:
        before = self._phase
        self.beat(phase)
        try:
            yield
        finally:
            self.beat(before)


def open_heart(run: Path, attempt: int, environ: Mapping[str, str], clock: Clock, memory: Path = MEMORY) -> tuple[Heart, str]:
    """What a rank beats with, from its environment alone, before anything else can hang; and why nobody hears it, where that is so.

    From here on the rank also answers when it is asked where it stands (`stackdump`).
    """
    folder = heartbeat_dir(run, attempt, node_name(environ), memory)
    try:
        heart = SharedHeart(folder, launcher_rank(environ), attempt, clock)
        listen_for_stacks(folder)
    except (OSError, ValueError) as error:
        return SilentHeart(), f"no heartbeat: {memory} cannot be used ({error}): a hang of this rank is seen by its peers' alone"
    return heart, ""


def node_name(environ: Mapping[str, str]) -> str:
    """The node's name as the supervisor knows it: mpiexec's ranks are given it, Slurm tells its own."""
    return environ.get("SLURMTRAIN_NODE") or environ.get("SLURMD_NODENAME") or socket.gethostname()


def launcher_rank(environ: Mapping[str, str]) -> int:
    """The launcher's number of this process; 0 where it tells none."""
    return next((int(environ[name]) for name in LAUNCHER_RANKS if environ.get(name, "").isdigit()), 0)


def heartbeat_dir(run: Path, attempt: int, node: str, memory: Path = MEMORY) -> Path:
    """Where the ranks of a node beat; nodes that are emulated on one machine have a folder each."""
    return run_memory(run, memory) / node / f"a{attempt:04d}"


def run_memory(run: Path, memory: Path = MEMORY) -> Path:
    """All that a run has in a node's memory."""
    key = hashlib.sha256(os.fsencode(run.absolute())).hexdigest()[:16]
    return memory / f"slurmtrain-{os.getuid()}" / key


def read_beats(folder: Path) -> dict[int, Beat]:
    """The newest sign of each rank of a node; one that cannot be read whole is left out."""
    found: dict[int, Beat] = {}
    with suppress(OSError):
        for path in folder.iterdir():
            if _NAME.fullmatch(path.name) and (beat := read_beat(path)) is not None:
                found[beat.rank] = beat
    return found


def read_beat(path: Path) -> Beat | None:
    """A rank's newest sign; None where there is none."""
    for _ in range(_LOOKS):
        try:
            data = path.read_bytes()
        except OSError:
            return None
        body = data[: _LAYOUT.size]
        if len(data) == _SIZE and zlib.crc32(body).to_bytes(4, "little") == data[_LAYOUT.size : _LAYOUT.size + 4]:
            magic, version, phase, rank, attempt, pid, step, t, since, work_s = _LAYOUT.unpack(body)
            if magic != _MAGIC or version != 1 or phase >= len(PHASES):
                return None
            entered, when = struct.unpack("=Qd", data[_COUNT:_END])
            return Beat(rank, attempt, pid, PHASES[phase], step, max(t, when), since, entered, work_s)
    return None
