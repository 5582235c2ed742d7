"""Why an attempt ended, row by row: what the ranks left, what Slurm says, what a person did. Expected words are written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmtrain.resilience.causes_of import Around, cause_of
from slurmtrain.resilience.classify import Death, Evidence, classify
from slurmtrain.resilience.hang_types import Hang
from slurmtrain.resilience.launcher_words import deaths_in, memory_ran_out
from slurmtrain.slurm.types import JobInfo
from slurmtrain.telemetry.exitfile import ExitRecord

NODES = ("n1", "n2")
PEER = "peer lost: RuntimeError: Connection closed by peer"
HANG = Hang(3, "n2", "step", 130.0, "rank 3 on n2 has not moved for 130 s, in step 57")
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed."
SRUN_OOM = "srun: error: n2: task 3: Out Of Memory"


def record(rank: int, kind: str, error: str = "", category: str | None = None) -> ExitRecord:
    return ExitRecord(rank, kind, 0 if kind in {"finished", "stopped"} else 1, 57, error, f"n{rank // 2 + 1}", category)


def seen(*records: ExitRecord, **more: object) -> Evidence:
    return replace(Evidence(NODES, 2, {r.rank: r for r in records}, spoke=True, down=frozenset()), **more)


def lost(*ranks: int) -> list[ExitRecord]:
    return [record(rank, "error", PEER, "network") for rank in ranks]


def every(kind: str, error: str = "", category: str | None = None) -> list[ExitRecord]:
    return [record(rank, kind, error, category) for rank in range(4)]


def job(state: str = "RUNNING", reason: str = "None", **more: object) -> JobInfo:
    return JobInfo("12", "llama", state, reason, **more)


def crash(category: str | None, error: str) -> Evidence:
    return seen(*lost(0, 1, 2), record(3, "error", error, category))


TERM = {"signal": "TERM"}
STOPPED = seen(*every("stopped", "requeue"), asked="requeue")
UNSAVED = seen(asked="requeue", ended_because="Slurm kills what is left 30 s after TERM")
ROWS: list[tuple[str, Evidence | None, Around, str]] = [
    # --- agreed ends
    ("all steps done", seen(*every("finished")), Around(), "finished"),
    ("its target was reached", seen(*every("finished", "target")), Around(job()), "finished"),
    ("STOP", seen(*every("stopped", "stop"), asked="stop"), Around(job()), "stopped"),
    ("Ctrl-C", seen(*every("stopped", "interrupt"), asked="interrupt"), Around(signal="INT"), "stopped"),
    ("Ctrl-C twice", seen(asked="interrupt", ended_because="a second Ctrl-C"), Around(signal="INT"), "cancelled"),
    ("STOP, but no rank obeyed", seen(*lost(0, 1), asked="stop", ended_because="ranks did not stop"), Around(job()), "stopped"),
    # --- Slurm's and a person's doing
    ("USR2 at the time limit", STOPPED, Around(job(), signal="USR2", own_will=True), "time_limit"),
    ("the deadline", STOPPED, Around(job(), own_will=True), "time_limit"),
    ("TERM at the time limit", STOPPED, Around(job("COMPLETING", "TimeLimit"), **TERM), "time_limit"),
    ("TERM at the time limit, nothing saved", UNSAVED, Around(job("COMPLETING", "TimeLimit"), **TERM), "time_limit"),
    ("the time limit, Slurm has ended the job", UNSAVED, Around(job("TIMEOUT"), **TERM), "time_limit"),
    ("USR2 without Slurm", STOPPED, Around(signal="USR2", own_will=True), "time_limit"),
    ("preempted, with GraceTime", STOPPED, Around(job(preempt_time=5.0), **TERM), "preempted"),
    ("preempted, taken", STOPPED, Around(job("COMPLETING", preempt_time=5.0), **TERM), "preempted"),
    ("preempted, Slurm says so", UNSAVED, Around(job("PREEMPTED"), **TERM), "preempted"),
    ("requeued by Slurm or by hand", STOPPED, Around(job("PENDING", "BeginTime", restarts=1), **TERM), "preempted"),
    ("requeued, still completing", STOPPED, Around(job("COMPLETING", restarts=3), restarts=2, **TERM), "preempted"),
    ("requeued before the ranks were started", None, Around(job("PENDING", restarts=1), **TERM), "preempted"),
    ("scancel", STOPPED, Around(job("COMPLETING"), **TERM), "cancelled"),
    ("scancel in a later start", STOPPED, Around(job("COMPLETING", restarts=2), restarts=2, **TERM), "cancelled"),
    ("scancel, nothing saved", UNSAVED, Around(job("CANCELLED"), **TERM), "cancelled"),
    ("slurmtrain cancel, TERM came", STOPPED, Around(job("COMPLETING"), cancelled=True, **TERM), "cancelled"),
    ("slurmtrain cancel, the ranks were killed", seen(*lost(0, 1, 2)), Around(job("COMPLETING"), cancelled=True, **TERM), "cancelled"),
    ("slurmtrain cancel while a rank fell", crash("rank_crash", "ValueError: x"), Around(job(), cancelled=True), "rank_crash"),
    (
        "slurmtrain cancel when a rank had been killed",
        seen(*lost(0, 1, 2), deaths={3: Death(None, "Killed")}),
        Around(job(), cancelled=True),
        "rank_crash",
    ),
    ("TERM by hand", STOPPED, Around(job(), **TERM), "stopped"),
    ("TERM without Slurm", STOPPED, Around(**TERM), "stopped"),
    # --- nodes
    ("Slurm says that a node is down", seen(*lost(0, 1), down=frozenset({"n2"})), Around(job()), "node_failure"),
    ("nobody ever spoke, a node is down", seen(spoke=False, down=frozenset({"n2"})), Around(job()), "node_failure"),
    ("Slurm ends a link because its node died", UNSAVED, Around(job("COMPLETING", "NodeDown"), **TERM), "node_failure"),
    (
        "Slurm requeued for a dead node before anybody knew",
        replace(UNSAVED, down=frozenset({"n2"})),
        Around(job("PENDING", restarts=1), **TERM),
        "node_failure",
    ),
    ("a hung rank, and its node is down", seen(hang=HANG, down=frozenset({"n2"})), Around(job()), "node_failure"),
    # --- hangs
    ("a rank hangs", seen(hang=HANG, ended_because=HANG.words), Around(job()), "hang"),
    ("a rank hangs, its peers gave up on it", seen(*lost(0, 1, 2), hang=HANG), Around(job()), "hang"),
    ("a rank hangs while all are asked to stop", replace(UNSAVED, hang=HANG), Around(job(), own_will=True), "hang"),
    ("a hang that was a rank's own error", replace(crash("storage", "OSError: x"), hang=HANG), Around(job()), "storage"),
    # --- a rank's own error, by its type
    ("an exception", crash("rank_crash", "ValueError: token 9"), Around(job()), "rank_crash"),
    ("the loss is not finite", crash("numerical", "NonFiniteError: the loss is nan"), Around(job()), "numerical"),
    ("replicas differ", crash("silent_corruption", "ReplicasDifferError: rank 3"), Around(job()), "silent_corruption"),
    ("the device's memory", crash("out_of_memory", "OutOfMemoryError: CUDA out of memory"), Around(job()), "out_of_memory"),
    ("the disk is full", crash("storage", "OSError: [Errno 28] No space left on device"), Around(job()), "storage"),
    ("an InfiniBand port", crash("network", "DistBackendError: NCCL error, NET/IB"), Around(job()), "network"),
    ("wrong configuration", seen(record(1, "config", "MPI sees 1 rank", "configuration")), Around(job()), "configuration"),
    # --- records of earlier releases, and of programs of other make: by words
    ("old: memory", crash(None, "MemoryError"), Around(job()), "out_of_memory"),
    ("old: storage", crash(None, "OSError: [Errno 116] Stale file handle: '/l/x'"), Around(job()), "storage"),
    ("old: nothing known", crash(None, "AssertionError"), Around(job()), "rank_crash"),
    # --- deaths without a record
    ("exit code 7", seen(*lost(0, 1, 2), deaths={3: Death(7, "")}), Around(job()), "rank_crash"),
    ("a segmentation fault", seen(*lost(0), deaths={3: Death(None, "Segmentation fault")}), Around(job()), "rank_crash"),
    ("SIGKILL", seen(*lost(0, 1, 2), deaths={3: Death(None, "Killed")}), Around(job()), "rank_crash"),
    ("SIGKILL, and Slurm tells of memory", seen(*lost(0, 1), deaths={3: Death(None, "Killed")}, oom=OOM), Around(job()), "out_of_memory"),
    ("srun tells of memory", seen(*lost(0), deaths=deaths_in(SRUN_OOM, NODES, 2), oom=SRUN_OOM), Around(job()), "out_of_memory"),
    ("Slurm: OUT_OF_MEMORY", seen(*lost(0, 1, 2)), Around(job("OUT_OF_MEMORY")), "out_of_memory"),
    (
        "a foreign program's last line",
        seen(deaths={3: Death(1, "")}, log="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
        Around(job()),
        "out_of_memory",
    ),
    ("all ranks of a healthy node were killed", seen(*lost(0, 1)), Around(job()), "rank_crash"),
    ("ranks left after a fault, and did not end", seen(*lost(0), ended_because="ranks were left 3 s after"), Around(job()), "rank_crash"),
    ("srun itself was killed", seen(launcher_signal="SIGKILL"), Around(job()), "launch_failure"),
    # --- the network
    ("only lost peers, all nodes are healthy", seen(*every("error", PEER, "network")), Around(job()), "network"),
    # --- starts
    ("no interpreter", seen(spoke=False, log="/opt/python: No such file"), Around(job()), "launch_failure"),
    ("nobody spoke in time", seen(spoke=False, ended_because="no rank spoke within 600 s"), Around(job()), "launch_failure"),
    ("the start ran out of memory", seen(spoke=False, oom=OOM), Around(job()), "out_of_memory"),
    ("Slurm held the job: a prolog failed", None, Around(job("PENDING", "launch failed requeued held", restarts=1)), "prolog_failure"),
]  # fmt: skip


def kind_of(evidence: Evidence | None, around: Around) -> str:
    if evidence is None:
        return "requeue" if around.signal else "launch"
    return classify(evidence).kind


def test_the_table_is_long_and_names_every_cause():
    from slurmtrain.telemetry.causes import CAUSES

    assert len(ROWS) >= 40
    assert {row[3] for row in ROWS} == set(CAUSES)


@pytest.mark.parametrize(("name", "evidence", "around", "cause"), ROWS, ids=[row[0] for row in ROWS])
def test_rows(name, evidence, around, cause):
    assert cause_of(kind_of(evidence, around), evidence, around) == cause


def test_a_hang_names_rank_node_and_what_it_was_doing():
    verdict = classify(seen(*lost(0, 1, 2), hang=HANG))
    assert (verdict.kind, verdict.rank, verdict.node, verdict.cause) == ("failed", 3, "n2", HANG.words)


def test_the_cause_of_a_crash_tells_the_rank_its_code_and_the_last_line_of_its_output():
    said = "Segfault in kernel.cu line 7"
    verdict = classify(seen(*lost(0, 1, 2), deaths={3: Death(7, "")}, log=said))
    assert verdict.cause == f"rank 3 code 7 on n2, without a record of its own; the last line: {said}"
    assert "last line" not in classify(seen(*lost(0, 1, 2), deaths={3: Death(7, "")}, log=f"rank 0 on n1: {PEER}")).cause


def test_a_kill_for_memory_is_told_in_slurms_words():
    oom = memory_ran_out(f"srun: Job step aborted\n{OOM}\n")
    verdict = classify(seen(*lost(0, 1, 2), deaths={3: Death(None, "Killed")}, oom=oom))
    assert verdict.cause.startswith("rank 3 on n2 was killed (SIGKILL) and left no record: Detected 1 oom_kill event in StepId=12.0")
    assert "by hand" not in verdict.cause
