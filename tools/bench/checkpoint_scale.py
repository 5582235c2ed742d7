#!/usr/bin/env python3
"""A checkpoint of 1,000 ranks, without any: who writes what, into how many files, with how many operations of the file system.

    tools/bench/checkpoint_scale.py [--json] [--model llama3.1-405b] [--nodes 128] [--per-node 8] [--tp 8] [--pp 16]
                                    [--writers 8,1] [--real]

Every rank's boxes are those of `parallel.parts` (weights and two moments of AdamW in fp32, fsdp over the data-parallel ranks, and its
random generator); every writer's file is laid out by `checkpoint.skeleton`, byte for byte as in a run, but no data is written. The
manifest is that of the whole checkpoint, with sums of the right length; times are those of one of this machine's processors. What ranks
read is what the reader would fetch, chunk by chunk, under this and other layouts.

Operations of the file system are counted where 2 and 4 ranks really save and load (checkpoint_counting.py); how many come once, with
each writer and with each rank is solved from these counts, and scaled. --real: also saves and loads the very run asked for, a small
one, and counts it, so that files and formulas can be held against it. The naive way, for comparison: a file for each tensor and rank.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from checkpoint_counting import CHANGES, LOOKS, Counted, Formula, counted, formulas

from slurmtrain.boxes import Part, whole
from slurmtrain.checkpoint.layout import BoxSpec, FileLayout
from slurmtrain.checkpoint.load import PartReader, Wish
from slurmtrain.checkpoint.reports import Report, assemble, file_name, report_of
from slurmtrain.checkpoint.saver import Header, shares
from slurmtrain.checkpoint.skeleton import lay_out
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.plan import Plan
from slurmtrain.fabric.layout import layout, stages
from slurmtrain.fabric.placement import coordinates
from slurmtrain.fabric.stages import cut
from slurmtrain.parallel.parts import shard_rows, stage_layouts
from slurmtrain.store.manifest import CHUNK_BYTES, FileSum, Manifest
from slurmtrain.store.verify import index_problems

T = TypeVar("T")
SAMPLE = 16
"""Ranks of a layout whose reads are worked out."""
MOST_REAL = 32
GENERATOR_BYTES = 5056
"""torch's generator of a CPU."""
KINDS = ("model/{}", "optimizer/{}/exp_avg", "optimizer/{}/exp_avg_sq")


def plan_of(model: ModelConfig, *, nodes: int, per_node: int, tp: int, pp: int, sequence: int = 8192) -> Plan:
    """dp is what tp and pp leave; fsdp over all of it."""
    sizes = cut(model, sequence, pp)
    return layout(
        nodes=nodes,
        gpus_per_node=per_node,
        tp=tp,
        pp=pp,
        dp=nodes * per_node // (tp * pp),
        dp_mode="fsdp",
        stages=stages(model.layers, pp, sizes),
        microbatches=pp,
    )


def parts_of(model: ModelConfig, plan: Plan, rank: int) -> list[Part]:
    """What a rank holds and owns of the weights."""
    at = coordinates(plan, rank)
    found = []
    for number in plan.stages_of(at["pp"]):
        last = number == len(plan.stages) - 1
        layouts = stage_layouts(model, plan.stages[number], first=number == 0, last=last, index=at["tp"], size=plan.tp)
        owned = [one for one in layouts.values() if one.owned]
        found += [part for one in owned for part in shard_rows(one, at["dp"], plan.shard).parts]
    return found


def specs_of(model: ModelConfig, plan: Plan, rank: int) -> list[BoxSpec]:
    """The boxes that a rank saves."""
    parts = [replace(part, name=kind.format(part.name)) for part in parts_of(model, plan, rank) for kind in KINDS]
    place = "-".join(f"{axis}{coordinates(plan, rank)[axis]}" for axis in ("pp", "dp", "ep", "cp", "tp"))
    generator = BoxSpec(f"rng/{place}/cpu", (GENERATOR_BYTES,), whole((GENERATOR_BYTES,)), "uint8")
    return [*(BoxSpec(part.name, part.global_shape, part.box, "float32") for part in parts), generator]


@dataclass(frozen=True)
class Files:
    """The files of a checkpoint. `seconds`: of laying out each, by its writer."""

    layouts: Sequence[FileLayout]
    seconds: Sequence[float]

    @property
    def boxes(self) -> int:
        return sum(len(one.stored) for one in self.layouts)


def files_of(model: ModelConfig, plan: Plan, writers_per_node: int) -> Files:
    made, seconds = [], []
    for ranks in shares(plan.gpus_per_node, writers_per_node, plan.nodes):
        specs = [spec for rank in ranks for spec in specs_of(model, plan, rank)]
        start = time.process_time()
        made.append(lay_out(file_name(ranks[0]), specs))
        seconds.append(time.process_time() - start)
    return Files(made, seconds)


def manifest_of(files: Files, plan: Plan) -> Manifest:
    """Of the whole checkpoint; sums are made up."""

    def report(one: FileLayout) -> Report:
        kinds = {spec.name: (spec.global_shape, spec.dtype) for spec in one.specs}
        sums = FileSum(one.size, ("0123456789abcdef",) * -(-one.size // CHUNK_BYTES))
        return report_of(int(one.file[5:-3]), one, kinds, sums)

    header = Header(1000, 1, 10**12, 1.0, plan.model_dump(mode="json"), {})
    return assemble(header, [report(one) for one in files.layouts])


def timed(deed: Callable[[], T]) -> tuple[T, float]:
    start = time.process_time()
    return deed(), time.process_time() - start


def index_times(manifest: Manifest, wanted: Sequence[str]) -> dict[str, float]:
    """Size of the manifest and seconds to write, read, and check it; and to look at the tensors that one rank wants."""
    data, write = timed(manifest.to_json)
    read, parse = timed(lambda: Manifest.from_json(data))
    _, look = timed(lambda: [read.tensors[name] for name in wanted])
    again = Manifest.from_json(data)
    problems, check = timed(lambda: index_problems(Path(), again))
    assert not problems, problems[:3]
    return {"manifest_bytes": len(data), "to_json_s": write, "parse_s": parse, "look_s": look, "check_s": check}


def figures(model: ModelConfig, plan: Plan, writers_per_node: int) -> dict[str, Any]:
    files = files_of(model, plan, writers_per_node)
    sizes = [one.size for one in files.layouts]
    wanted = [spec.name for spec in specs_of(model, plan, 0)]
    manifest, seconds = timed(lambda: manifest_of(files, plan))
    read = Manifest.from_json(manifest.to_json())
    return {
        "writers_per_node": writers_per_node,
        "writers": len(sizes),
        "entries": len(sizes) + 1,
        "boxes": files.boxes,
        "bytes": sum(sizes),
        "writer_bytes": [min(sizes), statistics.median(sizes), max(sizes)],
        "balance": statistics.mean(sizes) / max(sizes),
        "structure_bytes": max(sum(len(data) for _, data in one.structure) for one in files.layouts),
        "layout_s": [statistics.median(files.seconds), max(files.seconds)],
        "assemble_s": seconds,
        **index_times(manifest, wanted),
        "reading": [reading(model, read, other, SAMPLE) for other in others(model, plan)],
        "files": {one.file: one.size for one in files.layouts} if plan.world <= MOST_REAL else {},
    }


def others(model: ModelConfig, plan: Plan) -> list[Plan]:
    """The same layout, half the nodes, half the stages, half the tensor parallelism."""
    shape = {"nodes": plan.nodes, "per_node": plan.gpus_per_node, "tp": plan.tp, "pp": plan.pp}
    halves = [{}, *({key: shape[key] // 2} for key in ("nodes", "pp", "tp") if shape[key] % 2 == 0)]
    return [plan_of(model, **{**shape, **half}) for half in halves]


def reading(model: ModelConfig, manifest: Manifest, plan: Plan, sample: int) -> dict[str, Any]:
    """What some ranks of a layout read of the checkpoint: files that each opens, bytes wanted, bytes read (every chunk compared)."""
    files, wanted, read = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(0, plan.world, max(1, plan.world // sample)):
            parts = [replace(part, name=kind.format(part.name)) for part in parts_of(model, plan, rank) for kind in KINDS]
            wishes = [Wish(part, "float32", np.empty(part.box.shape, np.float32)) for part in parts]  # never touched
            tasks = PartReader(Path(folder), manifest)._tasks(wishes)
            files.append(len({task.file for task in tasks}))
            wanted.append(sum(wish.target.nbytes for wish in wishes))
            read.append(sum(min(CHUNK_BYTES, manifest.files[task.file].size - task.chunk * CHUNK_BYTES) for task in tasks))
    return {
        "layout": f"tp{plan.tp} pp{plan.pp} dp{plan.dp}",
        "ranks": plan.world,
        "files_opened": [min(files), statistics.median(files), max(files)],
        "wanted_bytes": statistics.median(wanted),
        "read_bytes": statistics.median(read),
        "read_by_wanted": sum(read) / sum(wanted),
    }


def operations() -> dict[str, dict[str, Formula]]:
    """What a save of each kind and a load cost, from counts of small ones."""
    model = preset("tiny")
    found: list[Counted] = []
    for per_node, writers_per_node in ((2, 2), (4, 4), (4, 1)):
        found.append(counted_run(model, plan_of(model, nodes=1, per_node=per_node, tp=2, pp=per_node // 2), writers_per_node))
    return {
        "save": formulas([(one.writers, one.ranks, one.saved) for one in found]),
        "save aside": formulas([(one.writers, one.ranks, settled(one.saved_aside)) for one in found]),
        "load": formulas([(one.writers, one.ranks, one.loaded) for one in found]),
    }


def settled(counts: Counter[str]) -> Counter[str]:
    """Without looks that are repeated while a writer waits for others (`checkpoint.writer_job`: at most one a second)."""
    return Counter({kind: count for kind, count in counts.items() if kind not in {"list", "stat"}})


def counted_run(model: ModelConfig, plan: Plan, writers_per_node: int) -> Counted:
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as folder:
        specs = [specs_of(model, plan, rank) for rank in range(plan.world)]
        return counted(Path(folder), specs, plan.gpus_per_node, writers_per_node)


def preset(name: str) -> ModelConfig:
    found = resources.files("slurmtrain.config").joinpath("presets", f"{name}.toml")
    return ModelConfig(**tomllib.loads(found.read_text()))


def report(args: argparse.Namespace) -> dict[str, Any]:
    model = preset(args.model)
    plan = plan_of(model, nodes=args.nodes, per_node=args.per_node, tp=args.tp, pp=args.pp)
    if args.real and plan.world > MOST_REAL:
        raise SystemExit(f"--real: {plan.world} ranks would be as many processes here: ask for at most {MOST_REAL}")
    costs = operations()
    rows = []
    for writers_per_node in args.writers:
        row = figures(model, plan, writers_per_node)
        at = (row["writers"], plan.world)
        row["operations"] = {deed: {kind: one.at(*at) for kind, one in kinds.items()} for deed, kinds in costs.items()}
        if args.real:
            real = counted_run(model, plan, writers_per_node)
            counts = {"save": dict(real.saved), "save aside": dict(settled(real.saved_aside)), "load": dict(real.loaded)}
            row["real"] = {"files": real.files, "operations": counts}
        rows.append(row)
    layout_name = f"tp{plan.tp} pp{plan.pp} dp{plan.dp} fsdp"
    about = {"model": args.model, "parameters": model.parameters(), "ranks": plan.world, "nodes": plan.nodes, "layout": layout_name}
    return {**about, "formulas": {deed: {kind: asdict(one) for kind, one in kinds.items()} for deed, kinds in costs.items()}, "rows": rows}


def show(found: dict[str, Any]) -> None:
    size, ranks = f"{found['parameters'] / 1e9:.1f} billion parameters", f"{found['ranks']} ranks on {found['nodes']} nodes"
    print(f"{found['model']}, {size}, {found['layout']}, {ranks}")
    rows, boxes = found["rows"], found["rows"][0]["boxes"]

    def line(name: str, values: Sequence[object], naive: object = "") -> None:
        print(f"{name:<58}" + "".join(f"{value!s:>26}" for value in (*values, naive)))

    def spread(values: Sequence[float], unit: float, digits: int = 2) -> str:
        return " / ".join(f"{value / unit:.{digits}f}" for value in values)

    line("", [f"{row['writers_per_node']} writers a node" for row in rows], "a file a tensor and rank")
    line("files in the folder, manifest.json among them", [row["entries"] for row in rows], boxes)
    line("boxes", [row["boxes"] for row in rows], boxes)
    line("TB", [f"{row['bytes'] / 1e12:.3f}" for row in rows])
    line("GB a writer: least / median / most", [spread(row["writer_bytes"], 1e9) for row in rows])
    line("balance: mean / most", [f"{row['balance']:.4f}" for row in rows])
    line("kB of HDF5's structure in a file, at most", [f"{row['structure_bytes'] / 1e3:.0f}" for row in rows])
    line("ms to lay a file out, once a run: median / most", [spread(row["layout_s"], 1e-3, 0) for row in rows])
    line("MB of manifest.json", [f"{row['manifest_bytes'] / 1e6:.1f}" for row in rows])
    for key, words in INDEX_WORDS.items():
        line(words, [f"{row[key]:.2f}" for row in rows])
    for deed, words in DEEDS.items():
        for kind in [kind for kind in (*CHANGES, *LOOKS) if kind in rows[0]["operations"][deed]]:
            counts = [f"{row['operations'][deed][kind]:.0f}" for row in rows]
            line(f"{words}: {kind}", counts, boxes if kind in {"create", "fsync", "open"} and (kind == "open") == (deed == "load") else "")
    for number, one in enumerate(rows[0]["reading"]):
        layouts = [row["reading"][number] for row in rows]
        line(f"loaded as {one['layout']} on {one['ranks']}: files a rank opens", [spread(other["files_opened"], 1, 0) for other in layouts])
        line("    bytes read / wanted, every chunk verified", [f"{other['read_by_wanted']:.3f}" for other in layouts])


INDEX_WORDS = {
    "assemble_s": "s to put the writers' words together (rank 0)",
    "to_json_s": "s to write manifest.json (rank 0)",
    "check_s": "s to check that boxes tile and do not overlap (rank 0)",
    "parse_s": "s to read manifest.json (every rank)",
    "look_s": "s to look at the tensors that one rank wants",
}
DEEDS = {"save": "save", "save aside": "asynchronous save, writers", "load": "load"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--model", default="llama3.1-405b", help="a preset of config/presets")
    for name, default in {"nodes": 128, "per-node": 8, "tp": 8, "pp": 16}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--writers", type=lambda text: [int(n) for n in text.split(",")], default=[8, 1], help="of a node: 8,1")
    parser.add_argument("--real", action="store_true")
    args = parser.parse_args()
    found = report(args)
    if args.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
