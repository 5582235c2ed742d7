"""One run of four ranks on a real Slurm of its own that meets faults, one after another, and must come out as if there had been none.

    python tools/bench/soak.py [--seed N] [--faults 30 | --kinds node,host] [--json] [--limit 180]

Rows: the fault, what it hit, how its attempt ended and was called, seconds from the fault until a step of the next attempt was done. At the
end what does not hold of: the run has finished; losses and norms of all steps of all attempts are those of an undisturbed run, bit for bit;
attempts are closed and never overlap; the accounts add up; no process, no litter, no drained node is left. Exit code 1 where something
is found. Needs root and Slurm's packages (`tools/devcluster install`); 20 minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from soak_checks import findings
from soak_cluster import Cluster, SoakError, Trained, make_root
from soak_faults import BY_ITSELF, Villain, drawn

from slurmtrain.resilience.records import AttemptRecord

NODES, WORLD = 5, 4
STEPS_A_FAULT, PACE_S = 12, 0.3
BASE_STEPS = 20


class Soak:
    """A run under faults; `tell` gets a row for each."""

    def __init__(self, trained: Trained, villain: Villain, kinds: list[str], tell: Callable[[dict[str, object]], None]) -> None:
        self._trained, self._villain, self._kinds, self._tell = trained, villain, kinds, tell

    def go(self) -> None:
        """All faults, then the run's end. Raises SoakError where the run does not come back."""
        for index, kind in enumerate(self._kinds):
            self._meet(index, kind, self._kinds[index + 1] if index + 1 < len(self._kinds) else "")
        self._trained.wait("FINISHED", self._trained.run.finished.exists)
        self._trained.wait("the supervisor's end", self._trained.run.exit_code.exists)

    def _meet(self, index: int, kind: str, following: str) -> None:
        trained = self._trained
        record = self._ready(kind)
        began, words = time.monotonic(), self._villain.do(kind, record)
        if kind == "agent":
            step = trained.newest_step()
            trained.wait("more steps", lambda: trained.newest_step() >= step + 3)
            self._row(index, kind, words, record, None, began)
            return
        closed = trained.wait(f"the end of attempt {record.attempt} ({kind}: {words})", lambda: self._closed(record.attempt))
        newest = trained.newest_step()
        self._villain.prepare(following, newest)
        again = trained.wait(f"steps after {kind}: {words}", lambda: self._trains_after(record.attempt))
        self._row(index, kind, words, self._closed(record.attempt) or closed, again, began)
        self._villain.mend()

    def _ready(self, kind: str) -> AttemptRecord:
        """The attempt that trains; where it is not to meet the fault by itself, when it has a checkpoint newer than all before."""
        trained = self._trained
        record = trained.wait("an attempt that trains", trained.running)
        if kind not in BY_ITSELF:
            before = max((event.fields["step"] for event in trained.steps() if event.attempt < record.attempt), default=0)
            trained.wait("a newer checkpoint", lambda: trained.newest_step(record.attempt) >= before + 5)
        return record

    def _closed(self, attempt: int) -> AttemptRecord | None:
        """An attempt's record, when it is closed, or followed (where nobody lived to close it)."""
        records = {record.attempt: record for record in self._trained.attempts()}
        one = records.get(attempt)
        return one if one is not None and (one.outcome is not None or max(records) > attempt) else None

    def _trains_after(self, attempt: int) -> AttemptRecord | None:
        now = self._trained.running()
        return now if now is not None and now.attempt > attempt else None

    def _row(self, index: int, kind: str, words: str, closed: AttemptRecord, again: AttemptRecord | None, began: float) -> None:
        ended = closed.outcome
        self._tell({
            "fault": index + 1, "kind": kind, "what": words, "attempt": closed.attempt, "outcome": ended.kind if ended else None,
            "category": ended.category if ended else None, "next": again.attempt if again else None,
            "nodes": " ".join(again.nodes) if again else None, "seconds": round(time.monotonic() - began, 1),
            "cause": ended.cause if ended else None,
        })  # fmt: skip


def soak(args: argparse.Namespace, tell: Callable[[dict[str, object]], None]) -> list[str]:
    """The whole of it; what was found."""
    rng = random.Random(args.seed)
    kinds = args.kinds.split(",") if args.kinds else drawn(rng, args.faults)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        root = Path(folder)
        cluster = Cluster(root / "c", NODES)
        try:
            make_root(cluster, root, steps=BASE_STEPS + STEPS_A_FAULT * len(kinds), nodes="2-4", hang_s=args.hang)
            still = Trained(cluster, root, "still", limit_s=args.limit)
            still.wait("the undisturbed run", still.run.finished.exists, limit_s=10 * args.limit)
            trained = Trained(cluster, root, "soaked", limit_s=args.limit)
            villain = Villain(trained, rng, world=WORLD, pace_s=PACE_S)
            villain.prepare(kinds[0] if kinds else "")
            return _soaked(Soak(trained, villain, kinds, tell), trained, still, villain)
        finally:
            cluster.down()


def _soaked(one: Soak, trained: Trained, still: Trained, villain: Villain) -> list[str]:
    try:
        one.go()
    except SoakError as error:
        return [str(error)]
    finally:
        villain.mend()
    trained.wait("the job's end", lambda: trained.cluster.job(trained.job).get("JobState", "COMPLETED") == "COMPLETED")
    return findings(trained, still, trained.cluster)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--kinds", default="", help="these faults in this order, in place of drawn ones: node,supervisor,host")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds that anything may take that is waited for (180)")
    parser.add_argument("--hang", type=float, default=20.0, help="recovery.hang.step_s of the run (20)")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end, in place of the rows' table")
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    print(f"seed {args.seed}", file=sys.stderr, flush=True)

    def tell(row: dict[str, object]) -> None:
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr if args.json else sys.stdout, flush=True)

    found = soak(args, tell)
    for line in found:
        print(f"FOUND: {line}", file=sys.stderr, flush=True)
    if args.json:
        print(json.dumps({"v": 1, "kind": "soak", "seed": args.seed, "faults": len(rows), "rows": rows, "findings": found}))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
