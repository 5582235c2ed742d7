"""Checkpoints on a node's own disk: SCRATCH/slurmtrain-UID/checkpoints/RUN-KEY/, KEY from the run's path and its id.

    run.json                     whose they are: {"v":1,"run":"/lustre/runs/llama","id":"0123456789abcdef"}
    step-00000500/               manifest.json of the whole checkpoint, and those of its files that this node keeps
    .step-00000500.a0002.tmp/    one that is being made

A checkpoint of this tier is whole when all its files are on some node of the attempt, beside one and the same manifest. A node's part
of it appears by one rename, like a checkpoint in the run folder, once all parts are complete on all nodes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash

from slurmtrain.atomic import SystemDisk, to_json
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir, checkpoint_step
from slurmtrain.store.commit import leftovers
from slurmtrain.store.local import Rules, read_rules
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest
from slurmtrain.store.verify import read_manifest
from slurmtrain.syscalls import SYSTEM, Syscalls, remove_tree, write_new
from slurmtrain.units import counted

KEEP = 2
"""Whole checkpoints that a node keeps: the newest may turn out damaged."""


@dataclass(frozen=True)
class LocalDir:
    """The folder of one run on one node."""

    path: Path

    def checkpoint(self, step: int) -> Path:
        return self.path / f"step-{step:08d}"

    def staging(self, step: int, attempt: int) -> Path:
        return self.path / f".step-{step:08d}.a{attempt:04d}.tmp"

    def trash(self, step: int) -> Path:
        """What a checkpoint is renamed to before its files are deleted."""
        return self.path / f".step-{step:08d}.trash"

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"


def local_dir(scratch: Path, run: RunDir, rules: Rules) -> LocalDir:
    """Where a run's checkpoints lie below a node's own disk."""
    path = run.path.absolute()
    key = xxhash.xxh3_64_hexdigest(f"{path}\0{rules.id}".encode())
    return LocalDir(scratch / f"slurmtrain-{os.getuid()}" / "checkpoints" / f"{path.name}-{key}")


def open_local(local: LocalDir, run: RunDir, rules: Rules, attempt: int, calls: Syscalls = SYSTEM) -> None:
    """Make the folder, remove what attempts up to this one left half made, and folders of runs that are over or gone.

    Raises CheckpointError where the folder of this user is another's, OSError.
    """
    checkpoints = local.path.parent
    mine = checkpoints.parent
    mine.mkdir(mode=0o700, parents=True, exist_ok=True)
    if mine.stat().st_uid != os.getuid():
        raise CheckpointError(f"{mine}: belongs to another user: have it removed")
    for folder in (checkpoints, local.path):
        with suppress(FileExistsError):
            calls.mkdir(folder)
    SystemDisk(calls).write(local.run_json, to_json({"v": 1, "run": str(run.path.absolute()), "id": rules.id}))
    sweep(local, attempt, calls)
    for folder in sorted(checkpoints.iterdir()):
        if folder != local.path and _is_over(folder):
            with suppress(OSError):
                remove_tree(calls, folder)


def sweep(local: LocalDir, attempt: int, calls: Syscalls = SYSTEM, but: str = "") -> None:
    """Remove what attempts up to this one left half made, but for a folder of this name. Raises OSError."""
    names = [entry.name for entry in os.scandir(local.path) if entry.name != but]
    for name in leftovers(names, attempt):
        remove_tree(calls, local.path / name)
    for name in names:
        if name.startswith(".probe-"):
            with suppress(FileNotFoundError):
                calls.unlink(local.path / name)
    for step, folder in _steps(local):
        for path in sorted(folder.glob(".*.tmp")):
            calls.unlink(path)
        if not (folder / MANIFEST_NAME).exists():
            withdraw(local, step, calls)


def _is_over(folder: Path) -> bool:
    """Whether the run that a folder belongs to is finished or gone; one that cannot be seen just now is neither."""
    try:
        raw = json.loads((folder / "run.json").read_bytes())
        run = RunDir(Path(str(raw["run"])))
        if run.finished.exists():
            return True
        if not run.path.exists():
            return run.path.parent.is_dir()
        rules = read_rules(run)
        return rules is not None and rules.id != raw["id"]
    except (OSError, ValueError, KeyError, TypeError, CheckpointError):
        return False


@dataclass(frozen=True)
class Held:
    """What a node has of a checkpoint. `seal`: the sum of its manifest's bytes; `count`: files of the whole; `files`: those here, of the
    right size.
    """

    step: int
    attempt: int
    t: float
    seal: str
    count: int
    files: frozenset[str]


def held(local: LocalDir) -> list[Held]:
    """Of each checkpoint of which this node has a manifest that can be read, newest first. Raises OSError."""
    found = []
    for step, folder in _steps(local):
        try:
            manifest = read_manifest(folder)
            seal = seal_of((folder / MANIFEST_NAME).read_bytes())
        except CheckpointError:
            continue
        if manifest.step == step:
            here = frozenset(name for name in manifest.files if _is_whole(folder / name, manifest))
            found.append(Held(step, manifest.attempt, manifest.t, seal, len(manifest.files), here))
    return found


def seal_of(manifest: bytes) -> str:
    """By which nodes know that they have the same manifest."""
    return xxhash.xxh3_64_hexdigest(manifest)


def _steps(local: LocalDir) -> list[tuple[int, Path]]:
    paths = [Path(entry.path) for entry in os.scandir(local.path)]
    return sorted(((step, path) for path in paths if (step := checkpoint_step(path.name)) is not None), reverse=True)


def _is_whole(path: Path, manifest: Manifest) -> bool:
    try:
        return path.is_file() and path.stat().st_size == manifest.files[path.name].size
    except OSError:
        return False


@dataclass(frozen=True)
class LocalCandidate:
    """A checkpoint all of whose files are there. `holders`: numbers of the nodes that have a file, by its name."""

    step: int
    attempt: int
    seal: str
    count: int
    holders: Mapping[str, tuple[int, ...]]

    def without(self, node: int, file: str) -> LocalCandidate:
        """The same when a node's file turned out damaged."""
        left = tuple(one for one in self.holders.get(file, ()) if one != node)
        return LocalCandidate(self.step, self.attempt, self.seal, self.count, {**self.holders, file: left})

    @property
    def missing(self) -> int:
        """Files that no node has."""
        return self.count - sum(bool(nodes) for nodes in self.holders.values())


def candidates(nodes: Sequence[Sequence[Held]], rules: Rules) -> tuple[list[LocalCandidate], list[tuple[int, str]]]:
    """From what each node has: the checkpoints that are whole, newest first; and (step, why) of those that are not, newest first.

    Of two of one step that of the later attempt comes first. Those that the rules leave out are in neither.
    """
    holders: dict[tuple[int, int, float, str, int], dict[str, list[int]]] = {}
    for number, all_ in enumerate(nodes):
        for one in all_:
            if rules.counts(one.attempt, one.step):
                table = holders.setdefault((one.step, one.attempt, one.t, one.seal, one.count), {})
                for name in one.files:
                    table.setdefault(name, []).append(number)
    whole, broken = list[LocalCandidate](), list[tuple[int, str]]()
    for (step, attempt, _, seal, count), table in sorted(holders.items(), reverse=True):
        found = LocalCandidate(step, attempt, seal, count, {name: tuple(table[name]) for name in sorted(table)})
        if found.missing:
            broken.append((step, incomplete(found)))
        else:
            whole.append(found)
    return whole, broken


def incomplete(one: LocalCandidate) -> str:
    """Why a checkpoint of this tier cannot be loaded."""
    return f"local: {one.missing} of its {counted(one.count, 'file')} on no node of this attempt"


def publish_local(local: LocalDir, staging: Path, step: int, manifest: bytes, calls: Syscalls = SYSTEM) -> None:
    """Make this node's part of a checkpoint visible; an older attempt's of the same step gives way. Raises OSError."""
    final, trash = local.checkpoint(step), local.trash(step)
    write_new(calls, staging / MANIFEST_NAME, manifest)
    if final.exists():
        remove_tree(calls, trash)
        calls.rename(final, trash)
    SystemDisk(calls).publish_dir(staging, final)
    remove_tree(calls, trash)


def withdraw(local: LocalDir, step: int, calls: Syscalls = SYSTEM) -> None:
    """Remove this node's part of a checkpoint. Raises OSError."""
    trash = local.trash(step)
    remove_tree(calls, trash)
    with suppress(FileNotFoundError):
        calls.rename(local.checkpoint(step), trash)
    remove_tree(calls, trash)


def going(there: Iterable[tuple[int, int]], step: int, attempt: int, keep: int = KEEP) -> list[int]:
    """Steps that go when this attempt's checkpoint of `step` is whole on all nodes: all but the newest `keep`.

    `there`: (step, attempt) of each. What older attempts saved of later steps goes too: the run has come by another way to here.

    >>> going([(50, 1), (30, 2), (20, 1), (10, 1)], step=30, attempt=2)
    [10, 50]
    """
    pairs = set(there)
    past = sorted(s for s, _ in pairs if s <= step)
    return sorted({*past[:-keep], *(s for s, a in pairs if s > step and a < attempt)})


def prune(local: LocalDir, steps: Iterable[int], attempt: int, calls: Syscalls = SYSTEM) -> list[str]:
    """Remove these, and what attempts up to this one left half made; what could not be removed comes back in words."""
    try:
        for step in steps:
            withdraw(local, step, calls)
        sweep(local, attempt, calls)
    except OSError as error:
        return [f"{error.filename or local.path}: old local checkpoints were not removed: {error.strerror or error}"]
    return []


def leave_node(local: LocalDir, calls: Syscalls = SYSTEM) -> None:
    """Remove all that the run has on this node: it is finished. What cannot be removed a later run of this user sweeps."""
    with suppress(OSError):
        for step, _ in _steps(local):
            withdraw(local, step, calls)
        remove_tree(calls, local.path)


def leave_probe(local: LocalDir, token: str, node: int) -> None:
    """Leave a file of this name and node, by which it shows whether two nodes share the folder. What fails is seen by nobody."""
    with suppress(OSError):
        _probe(local, token, node).touch()


def probes(local: LocalDir, token: str) -> list[int]:
    """Numbers of the nodes that left such a file here."""
    with suppress(OSError):
        return sorted(int(path.name.split(".")[-2]) for path in local.path.glob(f".probe-{token}.*.tmp"))
    return []


def remove_probe(local: LocalDir, token: str, node: int) -> None:
    """Take it back."""
    with suppress(OSError):
        _probe(local, token, node).unlink(missing_ok=True)


def _probe(local: LocalDir, token: str, node: int) -> Path:
    return local.path / f".probe-{token}.{node}.tmp"
