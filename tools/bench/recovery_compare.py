"""The same plain DDP script under three kinds of care, with the same faults: slurmtrain, torchrun --max-restarts, sbatch --requeue."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil
from recovery_cluster import ROOT, SLURMTRAIN, Field, happens

from slurmtrain.resilience.records import read_attempts
from slurmtrain.rundir import RunDir

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
STEPS, EVERY, KILL_AT, PAUSE_S = 120, 20, 47, 0.1
LIMIT_S = 400.0
TORCHRUN_LIMIT_S = 150.0
_LINE = re.compile(r"step (\d+) loss (\S+)")
JOB = """\
[entry]
command = ["python", "ddp.py", "--out", "{{checkpoints}}", "--steps", "{steps}", "--every", "{every}", "--pause", "{pause}"]
steps = {steps}
progress = 'step (?P<step>\\d+) loss (?P<loss>\\S+)'
checkpoint = 'checkpoints/step-(?P<step>\\d+)\\.pt'

[recovery]
backoff_s = 1

[slurm]
nodes = 1
time = "20:00"
"""


@dataclass(frozen=True)
class Side:
    """How one of them got over it; times in seconds."""

    name: str
    cold_start_s: float | None
    first_step_s: float | None
    steps_lost: int
    loss_equal: bool | None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Lines:
    """What a script has printed, and when each line came: its output is looked at fifty times a second."""

    pattern: str
    folder: Path
    began: float = 0.0
    struck: float = 0.0
    seen: list[tuple[float, int, str]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _read: dict[Path, int] = field(default_factory=dict)

    def start(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            for path in self.folder.glob(self.pattern):
                with suppress(OSError):
                    self._take(path)

    def _take(self, path: Path) -> None:
        text = path.read_text(errors="replace")
        whole = text[: text.rfind("\n") + 1]
        for found in _LINE.finditer(whole, self._read.get(path, 0)):
            self.seen.append((time.time(), int(found[1]), found[2]))
        self._read[path] = len(whole)

    def highest(self) -> int:
        return max((step for _, step, _ in self.seen), default=0)


def comparisons(where: Field, pattern: str) -> Iterator[Side]:
    """All of them, where the rows that are wanted say `compare`, or all."""
    if not any(fnmatch("compare", word) for word in pattern.split(",")):
        return
    folder = where.folder / "ddp"
    folder.mkdir()
    shutil.copy(ROOT / "examples" / "ddp.py", folder)
    (folder / "ddp.toml").write_text(JOB.format(steps=STEPS, every=EVERY, pause=PAUSE_S))
    undisturbed = _torchrun(folder, "undisturbed", kill=False)
    final = undisturbed.seen[-1][2] if undisturbed.seen else ""
    for name, side in _sides(where, folder).items():
        try:
            yield side(name, final)
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
            yield Side(name, None, None, 0, None, str(error))


def _sides(where: Field, folder: Path) -> dict[str, Callable[[str, str], Side]]:
    return {
        "rank killed: torchrun --max-restarts": lambda name, final: _of_torchrun(folder, name, final),
        "rank killed: slurmtrain": lambda name, final: _of_slurmtrain(where, folder, name, final, node=False),
        "node lost: slurmtrain with a spare": lambda name, final: _of_slurmtrain(where, folder, name, final, node=True),
        "node lost: sbatch --requeue, torchrun": lambda name, final: _of_requeue(where, folder, name, final),
    }


def _words(out: Path) -> list[str]:
    return ["ddp.py", "--out", str(out), "--steps", str(STEPS), "--every", str(EVERY), "--pause", str(PAUSE_S)]


def _torchrun(folder: Path, name: str, *, kill: bool) -> Lines:
    out = folder / name
    out.mkdir()
    lines = Lines("log", out)
    argv = [TORCHRUN, "--standalone", "--nproc-per-node=2", "--max-restarts=3", *_words(out)]
    lines.began = time.time()
    lines.start()
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    with open(out / "log", "w") as log:
        process = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    try:
        if kill:
            lines.struck = _kill_rank(lines, str(out))
        process.wait(TORCHRUN_LIMIT_S)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
    time.sleep(0.2)
    lines.stop()
    return lines


def _kill_rank(lines: Lines, out: str) -> float:
    """SIGKILL to rank 1 of the script that writes there, once it is time; when that was. Raises RuntimeError."""
    if not happens(lambda: lines.highest() >= KILL_AT, LIMIT_S, 0.02):
        raise RuntimeError(f"step {KILL_AT} was not reached")
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            words = process.cmdline()
            script = any(word.endswith("ddp.py") for word in words) and out in words
            if script and process.environ().get("LOCAL_RANK") == "1":
                struck = time.time()
                process.send_signal(signal.SIGKILL)
                return struck
    raise RuntimeError("rank 1 was not found")


def _side(name: str, lines: Lines, began: float, struck: float, final: str) -> Side:
    """`began`: of the first start."""
    first = lines.seen[0][0] - began if lines.seen else None
    later = [(t, step) for t, step, _ in lines.seen if t > struck + 0.05]
    before = max((step for t, step, _ in lines.seen if t <= struck + 0.05), default=0)
    back = next(((t, step) for place, (t, step) in enumerate(later) if step <= before or place == 0), None)
    lost = before - back[1] + 1 if back is not None else 0
    equal = bool(lines.seen) and lines.highest() == STEPS and lines.seen[-1][2] == final
    return Side(name, first, back[0] - struck if back is not None else None, max(0, lost), equal)


def _of_torchrun(folder: Path, name: str, final: str) -> Side:
    lines = _torchrun(folder, "torchrun", kill=True)
    return _side(name, lines, lines.began, lines.struck, final)


def _of_slurmtrain(where: Field, folder: Path, name: str, final: str, *, node: bool) -> Side:
    run = RunDir(where.runs / ("ddp-node" if node else "ddp-rank"))
    options = [
        "--site",
        str(where.folder / "two.toml"),
        "--root",
        str(where.runs),
        "-J",
        run.name,
        f"--spares={int(node)}",
        "--include=ddp.py",
    ]
    done = subprocess.run([SLURMTRAIN, "submit", "ddp.toml", *options], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    lines = Lines("attempts/*/*.log", run.path)
    lines.start()
    happens(lambda: bool(lines.seen), LIMIT_S, 0.05)
    record = read_attempts(run)[0]
    struck = _fail(where, lines, record.nodes[0]) if node else _kill_rank(lines, str(run.checkpoints))
    _to_the_end(where, run.finished.exists, record.job_id)
    lines.stop()
    _repair(where, record.nodes[0], node=node)
    return _side(name, lines, record.t_start, struck, final)


def _of_requeue(where: Field, folder: Path, name: str, final: str) -> Side:
    out = where.runs / "ddp-requeue"
    out.mkdir()
    script = folder / "requeue.sh"
    words = " ".join(_words(out))
    script.write_text(
        f"#!/bin/sh\ndate +%s.%N >> {out}/began\nexport GLOO_SOCKET_IFNAME=lo\n{TORCHRUN} --standalone --nproc-per-node=2 {words}\n"
    )
    shape = ["--requeue", "--nodes=1", "--exclusive", "--time=20", "--open-mode=append", f"--output={out}/log"]
    done = subprocess.run(["sbatch", "--parsable", *shape, str(script)], cwd=folder, capture_output=True, text=True, check=True)
    job_id = done.stdout.strip()
    lines = Lines("log", out)
    lines.start()
    if not happens(lambda: lines.highest() > 0, LIMIT_S, 0.05):
        raise RuntimeError(f"no step: {where.job(job_id)}")
    victim = where.job(job_id)["BatchHost"]
    struck = _fail(where, lines, victim)
    _to_the_end(where, lambda: lines.highest() >= STEPS, job_id)
    lines.stop()
    _repair(where, victim, node=True)
    return _side(name, lines, float((out / "began").read_text().split()[0]), struck, final)


def _fail(where: Field, lines: Lines, node: str) -> float:
    if not happens(lambda: lines.highest() >= KILL_AT, LIMIT_S, 0.02):
        raise RuntimeError(f"step {KILL_AT} was not reached")
    where.devcluster("fail", node)
    return time.time()


def _repair(where: Field, node_name: str, *, node: bool) -> None:
    if node:
        where.devcluster("restore", node_name)


def _to_the_end(where: Field, over: Callable[[], object], job_id: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not over():
        if time.monotonic() > end:
            where.said(["scancel", job_id], check=False)
            raise RuntimeError(f"not over within {LIMIT_S:.0f} s")
        if where.timings == "fast":
            where.spare_begin_time(job_id)
        time.sleep(0.5)
    time.sleep(0.2)
