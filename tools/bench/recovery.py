#!/usr/bin/env python3
"""The table of recovery: every kind of fault, done for real to runs of a tiny model on a real Slurm cluster of its own.

    tools/bench/recovery.py [--json] [--rows PATTERN] [--timings fast|default] [--at-once 2]

detected   the category of the attempt that the fault ended, or the event that told of it
detect     from the fault to the moment when the supervisor noticed it
new step   from the fault to the end of the first step after it, against a cold start (beginning of the first attempt to its first step)
lost       steps trained again
loss       = every step's loss, the last one's included, has the bits of an undisturbed run
left       processes of the run that are there when it is over, on any node; drained: nodes that Slurm drains now
comparison the same script (examples/ddp.py) with a rank or its node killed: under slurmtrain, torchrun --max-restarts, sbatch --requeue

Needs root and Slurm's packages (tools/devcluster install). With fast timings a requeued job is spared its begin time, as a user may.
Ctrl-C takes the cluster and all of its runs down. Figures are those of a machine on which all nodes share the same few cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]
os.environ.setdefault("OMP_NUM_THREADS", "1")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object at the end; the table goes to stderr, row by row")
    parser.add_argument("--rows", default="*", metavar="PATTERN", help="kinds; * and ? as in file names, several with commas")
    parser.add_argument("--timings", choices=["fast", "default"], default="fast", help="Slurm's, as in tools/devcluster up")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="drills at the same time, as far as the nodes go")
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave runs and logs in this new folder")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    with tempfile.TemporaryDirectory(prefix="bench-recovery-", ignore_cleanup_errors=True) as name:
        folder = args.keep.resolve() if args.keep else Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        found = measured(folder, args)
    if args.json:
        print(json.dumps(found))
    return 0 if all(row["ok"] for row in found["rows"]) else 1


def measured(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """All rows that are wanted, printed as they come."""
    from recovery_cluster import Field
    from recovery_compare import comparisons
    from recovery_print import HEAD, compared_line, line_of
    from recovery_rows import rows, still
    from recovery_table import LEFT_OUT, wanted

    table = sys.stderr if args.json else sys.stdout
    field = Field(folder, args.nodes, args.timings)
    before, done, sides = os.getloadavg()[0], [], []
    with field.up():
        entries = wanted(args.rows)
        print(HEAD, file=table, flush=True)
        if entries:
            still(field)
        for row in rows(field, entries, args.at_once):
            done.append(row.to_json())
            print(line_of(row), file=table, flush=True)
        for side in comparisons(field, args.rows):
            sides.append(side.to_json())
            print(compared_line(side), file=table, flush=True)
    if args.rows == "*":
        print("\n".join(f"{kind:<22} no row: {why}" for kind, why in LEFT_OUT.items()), file=table)
    about = {"cores": os.cpu_count(), "load_before": round(before, 1), "timings": args.timings, "nodes": args.nodes}
    return {"v": 1, "machine": about, "rows": done, "comparison": sides, "left_out": LEFT_OUT}


def _stop(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
