"""One row: a drill by `slurmtrain drill`, what the bench does to it meanwhile, and what came of it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from recovery_acts import Repair, act, ghost_of, place, prepared
from recovery_cluster import SLURMTRAIN, Field, happens, job_of, processes_of, reached
from recovery_table import Entry

from slurmtrain.cli.doors import system_doors
from slurmtrain.cli.drill_row import row_for
from slurmtrain.cli.facts import see
from slurmtrain.report.drilled import Row, faults_of, nothing
from slurmtrain.resilience.drills import kind_of
from slurmtrain.rundir import RunDir

STEP = 23
LIMIT_S = 540.0
GONE_WITHIN_S = 45.0
HELD_S = 20.0
STILL = "still"


@dataclass
class Trial:
    """A drill that runs."""

    entry: Entry
    field: Field
    run: RunDir
    process: subprocess.Popen[str]
    struck_t: float | None = None
    repair: Repair | None = None
    trouble: str = ""

    def follow(self) -> None:
        """To its end: strike when it is time, spare a requeued job its begin time."""
        end, held_since = time.monotonic() + LIMIT_S, None
        while self.process.poll() is None:
            if self.field.stop.is_set():
                self.process.kill()
                raise RuntimeError("stopped")
            if self.entry.act and self.struck_t is None and reached(self.run) >= STEP:
                self._strike()
            job_id = job_of(self.run)
            if job_id and self.field.timings == "fast":
                self.field.spare_begin_time(job_id)
            if self.entry.went == "held" and job_id and "held" in self.field.job(job_id).get("Reason", "").lower():
                held_since = held_since or time.monotonic()
            late = time.monotonic() > end
            if late or (held_since and time.monotonic() - held_since > HELD_S):
                self.trouble = f"not over within {LIMIT_S:.0f} s" if late else ""
                self.process.send_signal(signal.SIGINT)
                self.process.wait(60)
            time.sleep(0.5)

    def _strike(self) -> None:
        self.struck_t = time.time()
        try:
            self.repair = act(self.entry.act, self.field, self.run)
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            self.trouble = f"{self.entry.act}: {error}"

    def close(self) -> int:
        """Repair what was broken, end what does not end by itself; the number of processes that were left behind."""
        if self.repair is not None:
            self.repair()
        job_id = job_of(self.run)
        if job_id and (self.trouble or self.entry.went == "held"):
            self.field.said(["scancel", job_id], check=False)
        happens(lambda: not processes_of(self.run), GONE_WITHIN_S, 1.0)
        return len(processes_of(self.run))


def measure(field: Field, entry: Entry) -> Row:
    """Do it, and judge."""
    name = f"drill-{entry.kind}"
    with place(entry.place, field, name) as root, prepared(entry.prepare, field) as site:
        sets = [f"--set={text.replace('{data}', str(field.folder / 'data'))}" for text in entry.sets]
        where = ["--site", site, "--root", str(root), "-J", name, f"-N{entry.nodes}", f"--spares={entry.spares}", f"--step={STEP}"]
        argv = [SLURMTRAIN, "drill", entry.kind, "job.toml", *where, *sets, "--json"]
        with open(field.folder / f"{name}.log", "w") as log:
            process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True, cwd=field.folder)
            trial = Trial(entry, field, RunDir(root / name), process)
            trial.follow()
            said = process.communicate()[0]
        row = _judged(trial, said)
        if entry.place:
            _keep_words(field, trial.run)
        return row


def _keep_words(field: Field, run: RunDir) -> None:
    """What a run said whose file system goes now."""
    with suppress(OSError, shutil.Error):
        shutil.copytree(run.path, field.runs / run.name, ignore=shutil.ignore_patterns("step-*", ".step-*", "code"))


def _judged(trial: Trial, said: str) -> Row:
    entry, run = trial.entry, trial.run
    told: dict[str, Any] = json.loads(said.splitlines()[-1]) if said.strip() else {}
    doors, kind = system_doors(), replace(kind_of(entry.kind), went=(entry.went,))
    state = told.get("state") or (see(run, doors).state.state if run.path.exists() else "never began")
    struck_t = trial.struck_t or told.get("struck_t")
    row = row_for(run, kind, doors, state=state, struck_t=struck_t, reference=RunDir(trial.field.runs / STILL), left=0)
    row = replace(row, left=trial.close())
    trouble = [text for text in (trial.trouble, str(told.get("trouble") or "")) if text]
    trouble += ["a run folder that was gone was begun anew"] if ghost_of(run).exists() else []
    _undrain(trial.field, row)
    why = "; ".join([*trouble, *faults_of(row, kind)])
    return replace(row, ok=not why, why=why)


def _undrain(field: Field, row: Row) -> None:
    for node in row.drained or ():
        field.said(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)


def still(field: Field) -> None:
    """The undisturbed run that all are compared with. Raises RuntimeError."""
    site = str(field.folder / "bench.toml")
    field.said([SLURMTRAIN, "submit", "job.toml", "--site", site, "--root", str(field.runs), "-J", STILL, "-N2"])
    if not happens(RunDir(field.runs / STILL).finished.exists, LIMIT_S, 1.0):
        raise RuntimeError("the undisturbed run did not finish")


def rows(field: Field, entries: tuple[Entry, ...], at_once: int) -> Iterator[Row]:
    """One after another as they are done; some at once, as far as the nodes go, and those that need the cluster alone at the end."""
    together = [one for one in entries if not one.alone]
    running: dict[Future[Row], Entry] = {}
    with ThreadPoolExecutor(at_once) as pool:
        try:
            while together or running:
                while together and len(running) < at_once and sum(one.size for one in running.values()) + together[0].size <= field.nodes:
                    entry = together.pop(0)
                    running[pool.submit(measure, field, entry)] = entry
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield _result(future, running.pop(future))
        except BaseException:
            field.stop.set()
            raise
    for entry in (one for one in entries if one.alone):
        yield measure(field, entry)


def _result(future: Future[Row], entry: Entry) -> Row:
    try:
        return future.result()
    except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
        return nothing(entry.kind, f"the bench: {error}")
