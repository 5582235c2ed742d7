#!/usr/bin/env python3
"""Checkpoints, side by side in one run with raw files of the same bytes and with PyTorch's DCP, torch.save and safetensors.

    tools/bench/checkpoint.py [--json] [--rows PATTERN] [--repeats 5] [--folder DIR] [--quick] [--drop-caches]

A ratio is what it is held against divided by ours: higher is better. Contenders take turns, in another order in each repeat; a ratio
is taken within a repeat, the figure is the median of the repeats, its spread the distance of the quartiles. A row that writes and
misses its goal by less than its spread is within noise.

write      processes that write at the same time, fsync included, ours with sums, manifest and publishing; against as many processes
           that write the same bytes to a file each and fsync it.
cold read  into tensors that are there, ours with every byte verified, after the files were dropped from memory (posix_fadvise;
           --drop-caches, as root: all caches of the machine too); against plain reads of the same bytes.
warm read  the same again at once.
slices     1/8 of the rows, or columns, of one matrix; against DCP's reader.
async      how long training stands still: a copy of the state to memory that is there, divided by the time that `begin` takes.
resume     8 ranks, each wanting columns of what 8 ranks wrote as rows: (own shard + 256 MB) / growth of the resident size, of the rank
           that grew most (VmHWM, set back before the tensors are made, less VmRSS then).

Ranks are processes of this machine, one thread each for arithmetic. Files go into a folder of its own under --folder (default: that of
temporary files) and are removed at the end, or on Ctrl-C. What does not fit into disk or memory is left out, and said so. All rows take
about half an hour, up to 5 GB of that disk and 13 GB of memory; others who use the machine or the disk meanwhile are in the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]
for key in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(key, "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object at the end; the table goes to stderr, row by row")
    parser.add_argument("--rows", default="*", metavar="PATTERN", help="rows whose names contain it; * and ? as in file names")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to be measured")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, once: all rows run, their figures say nothing")
    parser.add_argument("--drop-caches", action="store_true", help="all caches of the machine before each cold read; root alone may")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    from checkpoint_results import HEAD, line_of
    from checkpoint_rows import Bench
    from checkpoint_world import machine

    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="bench-checkpoint-") as name:
        bench = Bench(Path(name), 1 if args.quick else args.repeats, args.rows, args.drop_caches, not args.quick)
        about = machine(bench.folder)
        table = sys.stderr if args.json else sys.stdout
        print("  ".join(f"{key} {value}" for key, value in about.items()), file=table)
        print(HEAD, file=table, flush=True)
        before = os.getloadavg()[0]
        for row in measured(bench, quick=args.quick):
            rows.append(row)
            print(line_of(row), file=table, flush=True)
        if before > about["cores"] / 2:
            bench.notes.append(f"others were using the machine: its load was {before:.1f} before, of {about['cores']} cores")
        if args.json:
            print(json.dumps({"rows": [row.as_json() for row in rows], "machine": about, "notes": bench.notes}))
        else:
            for note in bench.notes:
                print(note)


def measured(bench: object, *, quick: bool) -> Iterator:
    """Rows as they come; what cannot be run here becomes a note."""
    from checkpoint_races import races
    from checkpoint_rows import lack

    for race in races(quick=quick):
        if not any(bench.wants(goal) for goal in race.goals):
            continue
        if why := lack(race, bench.folder):
            bench.notes += [f"left out: {goal.name}: {why}" for goal in race.goals]
            continue
        yield from race.run(bench)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    from checkpoint_world import STOP

    STOP.set()
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
