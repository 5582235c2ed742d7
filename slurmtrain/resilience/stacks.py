"""Where each rank of a node is: its stacks into the attempt's folder, and a line for the log. What a node's agent does when it is asked.

py-spy looks from outside where it is there and may, at stopped processes too; else the rank is asked by a signal (`telemetry.stackdump`).
Everything goes to the node's memory first: a thread takes it to the shared folder, and nobody waits longer than a moment for that one.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.clock import Clock
from slurmtrain.resilience.agentwire import ProcessState
from slurmtrain.rundir import AttemptDir, RunDir
from slurmtrain.shell import Shell
from slurmtrain.telemetry.heartbeat import MEMORY, Beat, heartbeat_dir, read_beats
from slurmtrain.telemetry.stackdump import STACK_SIGNAL, ask_for_flight, flight_dump, stack_dump

ANSWER_S = 3.0
"""How long ranks may take to answer."""
COPY_S = 3.0
"""How long the agent waits for the shared folder."""
SPY_S = 3.0
_LOOK_S = 0.05
_FRAMES = (
    re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)'),
    re.compile(r"\s+(?P<name>\S.*) \((?P<file>.+):(?P<line>\d+)\)"),
)
"""As faulthandler and py-spy write a call."""
_WRAPPERS = frozenset({"wrapper", "_wrapper", "inner", "wrapped", "_fn", "__call__", "_call_impl", "_wrapped_call_impl"})


@dataclass(frozen=True)
class Frame:
    """One call. `own`: of neither Python's library nor an installed package."""

    name: str
    file: str
    line: int

    @property
    def short(self) -> str:
        """py-spy names a method with its class."""
        return self.name.rpartition(".")[2]

    @property
    def own(self) -> bool:
        return not re.search(r"/(?:site|dist)-packages/|/lib/python3|^<", self.file) or "/slurmtrain/" in self.file


def take_stacks(
    run: RunDir,
    attempt: int,
    node: str,
    *,
    clock: Clock,
    shell: Shell,
    state: Callable[[int], ProcessState] = lambda _: "runs",
    memory: Path = MEMORY,
) -> str:
    """Write where the ranks of this node are; one line. Takes at most some ten seconds, whatever hangs. `state`: of a process."""
    folder = heartbeat_dir(run.path, attempt, node, memory)
    beats = read_beats(folder)
    flights = {rank: _mtime(flight_dump(folder, beat.pid)) for rank, beat in beats.items() if ask_for_flight(folder, beat.pid)}
    states = {rank: state(beat.pid) for rank, beat in beats.items()}
    running = {rank: beat for rank, beat in beats.items() if states[rank] == "runs"}
    texts = _spied({rank: beat for rank, beat in beats.items() if states[rank] != "gone"}, shell, clock) if shutil.which("py-spy") else {}
    texts |= _asked(folder, {rank: beat for rank, beat in running.items() if rank not in texts}, clock)
    records = _flights(folder, beats, flights, clock)
    told = {rank: f"{beat.phase}, {_what(texts.get(rank, ''), states[rank])}" for rank, beat in sorted(beats.items())}
    heads = {rank: f"rank {rank} on {node}: {words}\n\n" for rank, words in told.items()}
    late = _published(run.attempt(attempt), {rank: head + texts.get(rank, "") for rank, head in heads.items()}, records)
    line = "; ".join(f"rank {rank}: {words}" for rank, words in told.items()) or "no rank beats here"
    return f"{line} (the shared folder does not take them)" if late else line


def _what(text: str, state: ProcessState) -> str:
    where = summary(text) if text else ""
    if state != "runs":
        return f"its process is {state}{f', {where}' if where else ''}"
    return where or "no answer"


def summary(text: str) -> str:
    """Where the main thread is: the innermost call of code that is no library's, and what it calls.

    >>> inner = '  File "/v/lib/python3.11/site-packages/torch/d.py", line 9 in all_reduce'
    >>> summary(f'Current thread 0x2 (most recent call first):\\n{inner}\\n  File "/me/optimizer.py", line 120 in step\\n')
    'all_reduce in optimizer.py:120'
    """
    frames = _main_thread(text)
    own = next((index for index, frame in enumerate(frames) if frame.own), None)
    if own is None:
        return f"{frames[0].short} in {Path(frames[0].file).name}:{frames[0].line}" if frames else "no stack"
    called = next((frame.short for frame in reversed(frames[:own]) if frame.short not in _WRAPPERS), frames[own].short)
    return f"{called} in {Path(frames[own].file).name}:{frames[own].line}"


def _main_thread(text: str) -> list[Frame]:
    """py-spy names it; faulthandler tells the oldest thread last."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        form = next(filter(None, (pattern.fullmatch(line.rstrip()) for pattern in _FRAMES)), None)
        if form is None and re.match(r"(Current t|T)hread ", line):
            threads.append((line, []))
        elif form is not None and threads:
            threads[-1][1].append(Frame(form["name"], form["file"], int(form["line"])))
    named = [frames for head, frames in threads if "MainThread" in head]
    return (named or [frames for _, frames in threads] or [[]])[-1]


def _spied(beats: Mapping[int, Beat], shell: Shell, clock: Clock) -> dict[int, str]:
    """What py-spy sees; ranks that it may not look at are left out."""
    found, limit = {}, clock.monotonic() + SPY_S
    for rank, beat in beats.items():
        left = limit - clock.monotonic()
        if left <= 0:
            break
        done = shell.run(["py-spy", "dump", "--nonblocking", "--full-filenames", "--pid", str(beat.pid)], timeout_s=left)
        if done.ok and done.out.strip():
            found[rank] = done.out
    return found


def _asked(folder: Path, beats: Mapping[int, Beat], clock: Clock) -> dict[int, str]:
    """What the ranks say to the signal."""
    files = {rank: stack_dump(folder, beat.pid) for rank, beat in beats.items()}
    before = {rank: _size(path) for rank, path in files.items()}
    for rank, beat in beats.items():
        if files[rank].exists():  # it listens
            with suppress(OSError):
                os.kill(beat.pid, STACK_SIGNAL)
    listening = [rank for rank, path in files.items() if path.exists()]
    _until(lambda: all(_size(files[rank]) > before[rank] for rank in listening), clock)
    _settled([files[rank] for rank in listening], clock)
    return {rank: text for rank in listening if (text := _after(files[rank], before[rank]))}


def _settled(files: Iterable[Path], clock: Clock) -> None:
    """Wait until nothing is added any more."""
    sizes: list[int] = [-1]

    def same() -> bool:
        before, sizes[:] = list(sizes), [_size(path) for path in files]
        return before == sizes

    files = list(files)
    _until(same, clock)


def _until(come: Callable[[], bool], clock: Clock) -> None:
    limit = clock.monotonic() + ANSWER_S
    while not come() and clock.monotonic() < limit:
        clock.sleep(_LOOK_S)


def _flights(folder: Path, beats: Mapping[int, Beat], before: Mapping[int, int], clock: Clock) -> dict[int, bytes]:
    """Records of torch's flight recorder, of the ranks that were asked and have answered."""
    files = {rank: flight_dump(folder, beats[rank].pid) for rank in before}
    _until(lambda: all(_mtime(files[rank]) != before[rank] for rank in files), clock)
    found = {}
    for rank, path in files.items():
        with suppress(OSError):
            if _mtime(path) != before[rank]:
                found[rank] = path.read_bytes()
    return found


def _published(attempt: AttemptDir, texts: Mapping[int, str], records: Mapping[int, bytes]) -> bool:
    """Take them to the shared folder; whether that takes longer than anybody waits."""

    def write() -> None:
        with suppress(OSError):
            attempt.make(attempt.stacks_dir)
            for rank, text in texts.items():
                attempt.stack(rank).write_text(text)
            for rank, record in records.items():
                attempt.flight_record(rank).write_bytes(record)
            done.set()

    done = threading.Event()
    threading.Thread(target=write, name="stacks", daemon=True).start()
    return not done.wait(COPY_S)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _after(path: Path, offset: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")
    except OSError:
        return ""
