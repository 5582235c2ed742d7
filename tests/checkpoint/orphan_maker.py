"""A program for test_orphans: ranks as threads that begin an asynchronous save, say their writers' pids, and wait to be killed.

Arguments: run folder, number of ranks, gate (doors.held), "begin" or "idle", seconds that a writer waits for others.
stdout: one line of JSON, the pids.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from slurmtrain.checkpoint.staged import AsyncSaver
from slurmtrain.rundir import RunDir
from tests.checkpoint.arrays import begin, source, terms
from tests.checkpoint.doors import held_door
from tests.checkpoint.staging import writer_pid
from tests.fakes.thread_group import run_ranks


def main(folder: str, ranks: str, gate: str, what: str, orphan_s: str) -> None:
    ready = threading.Barrier(int(ranks) + 1)
    pids = {}

    def body(group):
        saver = AsyncSaver(terms(RunDir(Path(folder))), group, door=held_door(Path(gate)), orphan_s=float(orphan_s))
        saver.prepare(source(10, group.rank, group.size))
        pids[group.rank] = writer_pid(saver)
        if what == "begin":
            begin(saver, 10, group)
        ready.wait()
        threading.Event().wait()

    threading.Thread(target=lambda: run_ranks(int(ranks), body), daemon=True).start()
    ready.wait()
    print(json.dumps([pids[rank] for rank in sorted(pids)]), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
