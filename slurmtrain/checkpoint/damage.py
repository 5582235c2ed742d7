"""All that is wrong with a checkpoint, by file and tensor; neither torch nor HDF5 is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurmtrain.errors import CheckpointError
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest
from slurmtrain.store.verify import THREADS, WIDTHS, Policy, index_problems, size_problems, sum_problems, sums_of

MOST_NAMES = 4
"""Tensors named for one chunk."""


def damage(folder: Path, manifest: Manifest, policy: Policy = "full", advance: Callable[[int], None] = lambda _: None) -> list[str]:
    """Every problem, one line each: of the index, of sizes, of bytes. `advance` hears of the bytes of files that are done with."""
    sizes = size_problems(folder, manifest)
    unlike = {problem.partition(": ")[0] for problem in sizes}

    def of_file(name: str) -> list[str]:
        found = [] if name in unlike else sum_problems(folder, manifest, [name], policy)
        advance(manifest.files[name].size)
        return (_named(folder, manifest, name) or with_tensors(manifest, found)) if found else []

    with ThreadPoolExecutor(THREADS) as pool:
        lines = [line for found in pool.map(of_file, manifest.files) for line in found]
    return list(dict.fromkeys((*index_problems(folder, manifest), *with_tensors(manifest, sizes), *lines)))


def with_tensors(manifest: Manifest, problems: Sequence[str]) -> list[str]:
    """Problems of whole files, `NAME: what`, with the tensors that lie in them; others as they are."""
    files = [name if (name := one.partition(": ")[0]) in manifest.files else None for one in problems]
    held: dict[str, list[tuple[int, str]]] = {name: [] for name in files if name is not None}
    for file, at, _, tensor in _runs(manifest) if held else ():
        if file in held:
            held[file].append((at or 0, tensor))
    return [one if name is None else f"{one}: {_lying(sorted(held[name]))}" for one, name in zip(problems, files, strict=True)]


def _lying(held: Sequence[tuple[int, str]]) -> str:
    return f"the file holds {_some([name for _, name in held])}" if held else "no tensor lies in it"


def strangers(folder: Path, manifest: Manifest) -> list[str]:
    """Names in the folder that are none of the checkpoint's."""
    known = {MANIFEST_NAME, "aside.json", *manifest.files}
    return sorted(path.name for path in folder.iterdir() if path.name not in known)


def _named(folder: Path, manifest: Manifest, name: str) -> list[str]:
    """The chunks of a file that differ, with the tensors that lie there; nothing where it cannot be read."""
    want, chunk = manifest.files[name], manifest.chunk_bytes
    try:
        have = sums_of(folder / name, chunk)
    except OSError:
        return []
    runs = [run for file, *run in _runs(manifest) if file == name]
    bad = [i for i, (a, b) in enumerate(zip(have.xxh3_64, want.xxh3_64, strict=False)) if a != b]
    return [f"{name}: chunk {i} (bytes from {i * chunk}) differs from what was written: {_tensors(runs, i * chunk, chunk)}" for i in bad]


def _runs(manifest: Manifest) -> Iterator[tuple[str, int | None, int, str]]:
    """(file, first byte, which the first format does not say, bytes, tensor) of all boxes; wrong entries are told elsewhere."""
    for name in manifest.tensors:
        with suppress(CheckpointError):
            entry = manifest.tensors[name]
            width = WIDTHS.get(entry.dtype, 0)
            for one in entry.boxes:
                yield one.file, one.at, one.box.volume * width, name


def _tensors(runs: Sequence[Sequence[Any]], start: int, size: int) -> str:
    known = sorted((at, at + count, name) for at, count, name in runs if at is not None)
    there = list(dict.fromkeys(name for low, high, name in known if low < start + size and high > start))
    if len(known) < len(runs):
        return f"the file holds {_some([name for _, _, name in runs])}"
    return f"there lies {_some(there)}" if there else "no tensor lies there"


def _some(names: list[str]) -> str:
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - MOST_NAMES} more" if len(distinct) > MOST_NAMES else ""
    return f"{', '.join(distinct[:MOST_NAMES])}{more}"
