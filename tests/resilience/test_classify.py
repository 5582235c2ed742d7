"""Each row of the classification: what the ranks left, and what it is taken for. Expected values are written by hand from the formats."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from slurmtrain.resilience.classify import Death, Evidence, classify
from slurmtrain.telemetry.exitfile import ExitRecord

PEER = "peer lost: RuntimeError: Connection closed by peer [10.0.0.2]:4711"
NODES = ("n1", "n2")
ENDED = Death(None, "Terminated")


def record(rank: int, kind: str, error: str = "", *, code: int = 1, step: int = 57) -> ExitRecord:
    return ExitRecord(rank, kind, 0 if kind in {"finished", "stopped"} else code, step, error, f"n{rank // 2 + 1}")


def evidence(*records: ExitRecord, **more: object) -> Evidence:
    """Two nodes of two ranks, all of which have spoken."""
    base = Evidence(NODES, 2, {r.rank: r for r in records}, spoke=True)
    return replace(base, **more)


def lost(*ranks: int) -> list[ExitRecord]:
    return [record(rank, "error", PEER) for rank in ranks]


def every(kind: str, error: str = "") -> list[ExitRecord]:
    return [record(rank, kind, error) for rank in range(4)]


@dataclass
class Row:
    name: str
    given: Evidence
    kind: str
    rank: int | None = None
    node: str = ""
    says: str = ""
    suspects: tuple[str, ...] = field(default=())


ROWS = [
    Row("all finished", evidence(*every("finished")), "finished", says="all steps done"),
    Row("the target ended it", evidence(*every("finished", error="target")), "finished", says="its target was reached"),
    Row("one finished, others late, last checkpoint there", evidence(record(0, "finished"), complete=True), "finished"),
    Row(
        "one finished, a node silent, no last checkpoint",
        evidence(record(0, "finished"), record(1, "finished")),
        "node_failure",
        node="n2",
        suspects=("n2",),
    ),
    Row("the folder is gone, and nobody could write", evidence(folder_gone=True), "failed", says="the run's folder is gone"),
    Row("the folder is gone, one node had written", evidence(*lost(0, 1), folder_gone=True), "failed", says="the run's folder is gone"),
    Row("the folder is gone, a rank had told its fault", evidence(record(1, "error", "boom"), folder_gone=True), "failed", 1, "n1", "boom"),
    Row("the folder went after all had told", evidence(*every("finished"), folder_gone=True), "finished"),
    Row("all stopped for a requeue", evidence(*every("stopped", "requeue"), asked="requeue"), "requeue", says="stopped at a checkpoint"),
    Row("all stopped because a person asked", evidence(*every("stopped", "stop"), asked="stop"), "stopped"),
    Row("a person asked after the notice had come", evidence(*every("stopped", "requeue"), asked="stop"), "stopped"),
    Row("ranks heard TERM themselves", evidence(*every("stopped", "requeue")), "requeue"),
    Row("some stopped, the rest killed after the save", evidence(record(0, "stopped", "requeue"), asked="requeue"), "requeue"),
    Row(
        "asked, nobody saved",
        evidence(asked="requeue", ended_because="Slurm kills what is left"),
        "requeue",
        says="did not save: Slurm kills",
    ),
    Row("Ctrl-C twice", evidence(asked="interrupt", ended_because="a second Ctrl-C"), "failed", says="second Ctrl-C"),
    Row(
        "one rank's own error among lost peers (an exception)",
        evidence(*lost(0, 1, 2), record(3, "error", "ValueError: bad token")),
        "failed",
        3,
        "n2",
        "rank 3 on n2: ValueError: bad token",
    ),
    Row("errors of all ranks alike", evidence(*every("error", "NonFiniteError: loss is nan")), "failed", 0, "n1", "(and 3 more ranks)"),
    Row(
        "config of a rank",
        evidence(record(1, "config", "MPI sees 1 rank but Slurm started 4", code=78), *lost(2)),
        "config",
        1,
        "n1",
        "MPI sees 1 rank",
    ),
    Row(
        "rank 3 exits 7 in a barrier (C32)",
        evidence(*lost(0, 1, 2), deaths={3: Death(7, "exited with code 7"), 0: Death(1, "")}),
        "failed",
        3,
        "n2",
        "rank 3 code 7",
    ),
    Row(
        "rank 3 exits 7, nobody else could say a word",
        evidence(deaths={3: Death(7, ""), 0: ENDED, 1: ENDED, 2: ENDED}),
        "failed",
        3,
        "n2",
        "rank 3 code 7",
    ),
    Row(
        "a segmentation fault",
        evidence(*lost(0), deaths={2: Death(None, "Segmentation fault"), 3: ENDED, 1: ENDED}),
        "failed",
        2,
        "n2",
        "rank 2 Segmentation fault on n2",
    ),
    Row(
        "a rank killed from outside",
        evidence(*lost(0, 1, 3), deaths={2: Death(None, "Killed")}),
        "failed",
        2,
        "n2",
        "rank 2 on n2 was killed (SIGKILL) and left no record: out of memory, or by hand",
    ),
    Row(
        "all ranks of a node killed: the first that the launcher names",
        evidence(record(1, "error", PEER), deaths={3: Death(None, "Killed")}),
        "failed",
        3,
        "n2",
        "rank 3 on n2 was killed",
    ),
    Row(
        "srun itself killed, the nodes answer",
        evidence(down=frozenset(), launcher_signal="SIGKILL"),
        "failed",
        says="the launcher itself was ended by SIGKILL",
    ),
    Row(
        "srun itself killed, the ranks were told to save",
        evidence(*every("stopped", "requeue"), launcher_signal="SIGKILL"),
        "failed",
        says="ended by SIGKILL; the ranks saved",
    ),
    Row(
        "srun killed by the supervisor, which has said why",
        evidence(down=frozenset(), launcher_signal="SIGKILL", ended_because="ranks were left 10 s after the first fault"),
        "failed",
        0,
        "n1",
        "ranks were left 10 s after",
    ),
    Row(
        "a rank killed; srun was told of a peer's end first, and the log holds that peer's words",
        evidence(*lost(0, 1, 2), log=f"rank 2 on n2: {PEER}"),
        "failed",
        3,
        "n2",
        "rank 3 on n2 ended without a record: the others lost it; killed from outside?",
    ),
    Row("srun killed, and a node with it", evidence(launcher_signal="SIGKILL"), "node_failure", None, "n1", suspects=NODES),
    Row("a node gone: Slurm not asked yet", evidence(*lost(0, 1)), "node_failure", None, "n2", "n2", ("n2",)),
    Row("a node gone: Slurm says so", evidence(*lost(0, 1), down=frozenset({"n2"})), "node_failure", None, "n2", "n2 is down"),
    Row("all ranks of a healthy node killed", evidence(*lost(0, 1), down=frozenset()), "failed", 2, "n2", "without a record"),
    Row("all nodes silent, Slurm not asked yet", evidence(), "node_failure", None, "n1", suspects=NODES),
    Row(
        "nobody ever spoke",
        evidence(spoke=False, down=frozenset(), log="/opt/python: No such file or directory"),
        "launch",
        says="No such file or directory",
    ),
    Row("nobody spoke, a node is down", evidence(spoke=False, down=frozenset({"n2"})), "node_failure", None, "n2"),
    Row(
        "nobody spoke in time",
        evidence(spoke=False, down=frozenset(), ended_because="no rank spoke within start_timeout_s = 600"),
        "launch",
        says="start_timeout_s",
    ),
    Row(
        "one left with 0 at once, the others waited until a person stopped them",
        evidence(record(1, "finished"), *[record(rank, "stopped", "stop") for rank in (0, 2, 3)], asked="stop"),
        "stopped",
    ),
    Row(
        "one left with 0 at once, the others lost it",
        evidence(record(1, "finished"), *lost(0, 2, 3)),
        "failed",
        1,
        "n1",
        "ended with code 0 before",
    ),
    Row("the others lost one that had finished, all is saved", evidence(record(1, "finished"), *lost(0, 2, 3), complete=True), "finished"),
    Row("only lost peers", evidence(*every("error", PEER)), "failed", 0, "n1", "no rank left an error of its own"),
    Row("one more rank", evidence(*[record(r, "error", "ValueError: bad") for r in (0, 1)]), "failed", 0, "n1", "(and 1 more rank)"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_rows(row: Row):
    verdict = classify(row.given)
    assert (verdict.kind, verdict.rank, verdict.node, verdict.suspects) == (row.kind, row.rank, row.node, row.suspects)
    assert row.says in verdict.cause
    assert "\n" not in verdict.cause


def test_the_step_is_the_furthest_of_the_records():
    assert classify(evidence(record(0, "stopped", step=41), record(1, "stopped", step=42), asked="requeue")).step == 42


def test_a_stop_does_not_hide_a_fault_that_came_with_a_code():
    given = evidence(*lost(0), asked="requeue", deaths={3: Death(7, "")})
    assert classify(given).kind == "failed"
