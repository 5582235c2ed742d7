"""Emulated nodes for tests of their own disks: ranks are threads, each node has a scratch folder, writers write where they are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slurmtrain.boxes import Part, whole
from slurmtrain.checkpoint.group import Failure
from slurmtrain.checkpoint.load import PartReader
from slurmtrain.checkpoint.local_load import LocalLoads, LocalRival
from slurmtrain.checkpoint.local_save import Ground, LocalSaves, Seat
from slurmtrain.checkpoint.reports import Report, file_name, report_of
from slurmtrain.checkpoint.restore import restore
from slurmtrain.checkpoint.saver import Outcome
from slurmtrain.checkpoint.skeleton import lay_out
from slurmtrain.checkpoint.writing import write_file
from slurmtrain.rundir import RunDir
from slurmtrain.store.aside import set_aside
from slurmtrain.store.listing import Found
from slurmtrain.store.local import make_rules
from slurmtrain.store.scratch import LocalDir, held, local_dir, open_local
from slurmtrain.syscalls import SYSTEM, Syscalls
from tests.checkpoint.arrays import SHAPES, header, source, values
from tests.fakes.thread_group import ThreadGroup, run_ranks


def ground(group: Any, run: RunDir, scratch: Path, nodes: Sequence[str], *, attempt: int = 1, owner_check: Any = lambda: None) -> Ground:
    """Of a rank; its node's scratch is `scratch`/NODE."""
    seat = Seat(tuple(nodes), group.rank // (group.size // len(nodes)), group.rank % (group.size // len(nodes)), group.size // len(nodes))
    rules = group.broadcast(make_rules(run) if group.rank == 0 else None)
    local = local_dir(scratch / nodes[seat.node], run, rules)
    if seat.first:
        open_local(local, run, rules, attempt)
    group.barrier()
    return Ground(run, local, seat, attempt, 20.0, owner_check)


def written(staging: Path, step: int, rank: int, world: int) -> Report:
    """A rank's part of the state of a step (`arrays.values`), as its writer writes it."""
    own = source(step, rank, world)
    layout = lay_out(file_name(rank), own.specs)
    staging.mkdir(exist_ok=True)
    return report_of(rank, layout, own.kinds, write_file(SYSTEM, staging / layout.file, layout, own.fetch))


Writer = Callable[[Path, int, int, int], Report | Failure]


def save(group: Any, here: Ground, step: int, *, writer: Writer = written, calls: Syscalls = SYSTEM) -> tuple[list[Outcome], LocalSaves]:
    """One save to its end; a new object each time: this node's older ones are looked up."""
    saves = LocalSaves(here, lambda: group, [(one.step, one.attempt) for one in held(here.local)], calls=calls)
    head = header(step, group.size, here.attempt)
    group.barrier()
    saves.begin(head, 0.5, renew=False)
    saves.report(writer(saves.staging(head), step, group.rank, group.size))
    saves.wait(30.0)
    assert not saves.busy
    return saves.take(), saves


def all_parts(_: Any = None) -> list[Part]:
    """All tensors, whole: what a rank of plain data parallelism wants."""
    return [Part(name, shape, whole(shape), tuple((0, n) for n in shape)) for name, shape in SHAPES.items()]


def check(found: Found, parts: Sequence[Part]) -> None:
    """Read these parts of a checkpoint; they must be the state of its step."""
    with PartReader(found.folder, found.manifest) as reader:
        for part in parts:
            target = np.empty(part.box.shape, np.float32)
            reader.fill(part, "float32", target)
            inside = tuple(slice(a, b) for a, b in zip(part.box.offset, part.box.stop, strict=True))
            np.testing.assert_array_equal(target, values(part.name, found.step)[inside])


def load(group: Any, run: RunDir, scratch: Path, nodes: Sequence[str], *, attempt: int, parts_of: Any = all_parts) -> Any:
    """(step, tier, passed over) of what a run goes on from, all ranks having compared what they want; (None, "", passed over)."""
    here = ground(group, run, scratch, nodes, attempt=attempt)
    loads = LocalLoads(group, here, make_rules(run))
    rival = LocalRival(loads, group, parts_of, loads.look())
    found = restore(
        run.checkpoints,
        group,
        lambda found: check(found, parts_of(found.manifest)),
        set_aside=lambda step, why: set_aside(run, step, why) and None,
        rival=rival,
    )
    if found is None:
        return None, "", tuple(rival.passed_over)
    return found.step, found.tier, found.passed_over


def world(nodes: Sequence[str], ranks_per_node: int, body: Callable[[ThreadGroup], Any]) -> list[Any]:
    """What body(group) gave on each rank; raises where one raised."""
    results = run_ranks(len(nodes) * ranks_per_node, body)
    for one in results:
        if isinstance(one, Exception):
            raise one
    return results


def folder_of(run: RunDir, scratch: Path, node: str) -> LocalDir:
    return local_dir(scratch / node, run, make_rules(run))
