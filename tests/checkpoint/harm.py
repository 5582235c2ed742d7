"""Harm to a checkpoint's folder, kind by kind: the deed, and what each way of verifying promises to find of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slurmtrain.rundir import RunDir
from slurmtrain.store.verify import read_manifest
from tests.checkpoint.fuzz_mutations import sealed, unsealed
from tests.checkpoint.stored import flip, store, with_chunks

CHUNK = 1024
VICTIM = "rank-00001.h5"
TENSORS = {
    "model/w": np.arange(6000, dtype=np.float32).reshape(150, 40),
    "model/norm": np.arange(600, dtype=np.float32) + 7,
    "optimizer/norm/exp_avg": np.arange(600, dtype=np.float64),
    "model/scale": np.float32(0.5).reshape(()),
}
POLICIES = ("full", "sampled", "sizes")
ALL, SUMS, EVERY = frozenset(POLICIES), frozenset({"full", "sampled"}), frozenset({"full"})
NONE: frozenset[str] = frozenset()


def values(name: str, step: int) -> np.ndarray:
    return TENSORS[name] + TENSORS[name].dtype.type(step)


def make(folder: Path, step: int) -> None:
    """A checkpoint in three files of many chunks, each with a third of every tensor; the files are of one size."""
    made = store(folder, step, {name: values(name, step) for name in TENSORS}, files=3, chunk_bytes=CHUNK)
    (folder / "manifest.json").write_bytes(with_chunks(made, folder).to_json())


def first_byte(folder: Path, tensor: str) -> int:
    """Of the tensor, in the victim."""
    return next(one.at or 0 for one in read_manifest(folder).tensors[tensor].boxes if one.file == VICTIM)


@dataclass(frozen=True)
class Harm:
    """`found`: by which policies. `words`: of what is said; FILE, and TENSOR where one must be named. `aside`: a restart sets it aside.

    `seen`: commands say it before they read a byte (`submit --resume STEP`). `spoils`: who does not find it loads wrong values.
    """

    deed: Callable[[Path], object]
    found: frozenset[str]
    words: tuple[str, ...] = ()
    aside: bool = True
    seen: bool = False
    spoils: bool = True


def changed(folder: Path, deed: Callable[[dict], object], *, seal: bool = True) -> None:  # type: ignore[type-arg]
    """The manifest, changed; with a sum that is right, or that of before."""
    path = folder / "manifest.json"
    data = path.read_bytes()
    raw = unsealed(data)
    deed(raw)
    body = json.dumps(raw, separators=(",", ":")).encode()
    path.write_bytes(sealed(body) if seal else body[:-1] + data[-len(b',"xxh3_64":"0123456789abcdef"}\n') :])


def rewritten(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def replaced(name: str, deed: Callable[[Path], object]) -> Callable[[Path], object]:
    def do(folder: Path) -> None:
        (folder / name).unlink()
        deed(folder / name)

    return do


def flipped(tensor: str, chunk_in_sample: bool) -> Callable[[Path], object]:
    """A bit of a tensor, in a chunk that a sample takes or leaves."""

    def do(folder: Path) -> None:
        at = first_byte(folder, tensor)
        while (at // CHUNK % 8 == 0) != chunk_in_sample:
            at += CHUNK
        flip(folder / VICTIM, at + 3, 5)

    return do


def digit_changed(seal: bool) -> Callable[[Path], object]:
    """One of the sum of the first chunk."""

    def do(raw: dict) -> None:  # type: ignore[type-arg]
        size, digits = raw["files"][VICTIM]
        raw["files"][VICTIM] = [size, ("0" if digits[0] != "0" else "1") + digits[1:]]

    return lambda folder: changed(folder, do, seal=seal)


def swapped(folder: Path) -> None:
    (folder / VICTIM).rename(folder / "x")
    (folder / "rank-00002.h5").rename(folder / VICTIM)
    (folder / "x").rename(folder / "rank-00002.h5")


def as_folder(folder: Path, deed: Callable[[Path], object]) -> None:
    shutil.rmtree(folder)
    deed(folder)


def another(folder: Path) -> Path:
    """The checkpoint before it."""
    return RunDir(folder.parent.parent).checkpoint(20)


def manifest_of_20(folder: Path) -> None:
    shutil.copy(another(folder) / "manifest.json", folder / "manifest.json")


def of_another_run(folder: Path) -> None:
    """The manifest of this step of a run with other values: all but the sums fits."""
    make(folder.parent.parent / "other" / folder.name, 31)
    changed(folder.parent.parent / "other" / folder.name, lambda raw: raw.update(step=30))
    shutil.copy(folder.parent.parent / "other" / folder.name / "manifest.json", folder / "manifest.json")


def file_of_20(folder: Path) -> None:
    shutil.copy(another(folder) / VICTIM, folder / VICTIM)


FILE = (VICTIM,)
LIES = (VICTIM, "model/w")
NO_FILE = (VICTIM, "No such file or directory", "model/w")
HARMS: dict[str, Harm] = {
    "a bit of a tensor": Harm(flipped("model/w", chunk_in_sample=True), SUMS, LIES),
    "a bit of a tensor, beside the sample": Harm(flipped("model/w", chunk_in_sample=False), EVERY, LIES),
    "a bit of another tensor": Harm(flipped("optimizer/norm/exp_avg", chunk_in_sample=False), EVERY, (VICTIM, "optimizer/norm/exp_avg")),
    "a bit of HDF5's own": Harm(lambda folder: flip(folder / VICTIM, 9), SUMS, FILE, spoils=False),
    "a block of zeros": Harm(rewritten(VICTIM, lambda data: data[:4096] + bytes(4096) + data[8192:]), EVERY, LIES),
    "cut and filled up with zeros": Harm(
        rewritten(VICTIM, lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2)), SUMS, FILE
    ),
    "a foreign file of the same size": Harm(rewritten(VICTIM, lambda data: bytes(reversed(data))), SUMS, LIES),
    "a foreign file": Harm(rewritten(VICTIM, lambda _: b"not mine"), ALL, (VICTIM, "8 bytes", "model/w"), seen=True),
    "the file of the checkpoint before": Harm(file_of_20, SUMS, LIES),
    "two files swapped": Harm(swapped, SUMS, LIES),
    "cut to nothing": Harm(rewritten(VICTIM, lambda _: b""), ALL, (VICTIM, "0 bytes", "model/w"), seen=True),
    "cut to a half": Harm(rewritten(VICTIM, lambda data: data[: len(data) // 2]), ALL, (VICTIM, "were written", "model/w"), seen=True),
    "a byte short": Harm(rewritten(VICTIM, lambda data: data[:-1]), ALL, (VICTIM, "were written", "model/w"), seen=True),
    "a byte long": Harm(rewritten(VICTIM, lambda data: data + b"\0"), ALL, (VICTIM, "were written", "model/w"), seen=True),
    "a file missing": Harm(lambda folder: (folder / VICTIM).unlink(), ALL, NO_FILE, seen=True),
    "a folder for a file": Harm(replaced(VICTIM, Path.mkdir), ALL, (VICTIM, "not a file", "model/w"), seen=True),
    "a pipe for a file": Harm(replaced(VICTIM, os.mkfifo), ALL, (VICTIM, "not a file", "model/w"), seen=True),
    "a link to itself": Harm(replaced(VICTIM, lambda path: path.symlink_to(path)), ALL, (VICTIM, "symbolic links", "model/w"), seen=True),
    "a link to nothing": Harm(replaced(VICTIM, lambda path: path.symlink_to("gone")), ALL, NO_FILE, seen=True),
    "a bit of the index": Harm(lambda folder: flip(folder / "manifest.json", 400), ALL, ("manifest.json",), seen=True),
    "a digit of a sum": Harm(digit_changed(seal=False), ALL, ("manifest.json", "sum differs"), seen=True),
    "a digit of a sum, sealed": Harm(digit_changed(seal=True), SUMS, FILE, spoils=False),
    "manifest cut": Harm(rewritten("manifest.json", lambda data: data[: len(data) // 2]), ALL, ("manifest.json", "not JSON"), seen=True),
    "manifest empty": Harm(rewritten("manifest.json", lambda _: b""), ALL, ("manifest.json", "not JSON"), seen=True),
    "manifest missing": Harm(lambda folder: (folder / "manifest.json").unlink(), ALL, ("manifest.json", "No such file"), seen=True),
    "manifest foreign": Harm(
        rewritten("manifest.json", lambda _: b'{"metadata": {}}'), ALL, ("manifest.json", "not a manifest"), seen=True
    ),
    "manifest of another step": Harm(manifest_of_20, ALL, ("step 20 in a folder of step 30",), seen=True),
    "manifest of another run": Harm(of_another_run, SUMS, ("rank-00000.h5", "model/w"), spoils=False),
    "a box taken away": Harm(
        lambda f: changed(f, lambda raw: raw["tensors"]["model/norm"][2].pop()), ALL, ("model/norm: 200 of 600",), seen=True
    ),
    "two boxes on one place": Harm(
        lambda f: changed(f, lambda raw: raw["tensors"]["model/w"][2][1].__setitem__(5, [0, 0])), ALL, ("model/w: boxes at",), seen=True
    ),
    "a box behind its file's end": Harm(
        lambda f: changed(f, lambda raw: raw["tensors"]["model/w"][2][1].__setitem__(3, 10**9)), ALL, ("model/w: its bytes end",), seen=True
    ),
    "a newer version": Harm(lambda f: changed(f, lambda raw: raw.update(v=3)), ALL, ("format version 3",), aside=False, seen=True),
    "no version that there was": Harm(lambda f: changed(f, lambda raw: raw.update(v=0)), ALL, ("manifest.json",), seen=True),
    "a folder for the manifest": Harm(replaced("manifest.json", Path.mkdir), ALL, ("manifest.json", "not a file"), seen=True),
    "a manifest that is a link to itself": Harm(
        replaced("manifest.json", lambda path: path.symlink_to(path)), ALL, ("manifest.json", "symbolic links"), seen=True
    ),
    "an empty folder": Harm(lambda folder: as_folder(folder, Path.mkdir), ALL, ("manifest.json", "No such file"), seen=True),
    "a file for the folder": Harm(lambda folder: as_folder(folder, Path.touch), ALL, ("manifest.json", "Not a directory"), seen=True),
    "a folder that is a link to itself": Harm(
        lambda folder: as_folder(folder, lambda path: path.symlink_to(path)), ALL, ("manifest.json", "symbolic links"), seen=True
    ),
    "a foreign file beside": Harm(lambda folder: (folder / "notes.txt").write_text("mine"), NONE, spoils=False),
    "a file that lies elsewhere": Harm(
        lambda f: (f / VICTIM).rename(f.parent / "x") and (f / VICTIM).symlink_to(f.parent / "x"), NONE, spoils=False
    ),
}
