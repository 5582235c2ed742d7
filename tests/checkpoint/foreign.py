"""What a checkpoint holds, by h5py and the manifest's JSON alone: a reader written from the description of the format."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np

KINDS = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool")
CARRIERS = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8, **{kind: np.dtype(kind) for kind in KINDS}}


def contents(folder: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Element type and elements of every tensor; types that numpy has not as unsigned integers of their bits."""
    raw = json.loads((folder / "manifest.json").read_bytes())
    assert raw["v"] == 2
    files = [h5py.File(folder / name, "r") for name in raw["files"]]
    found = {}
    for name, (dtype, shape, boxes) in raw["tensors"].items():
        whole = np.zeros(shape, CARRIERS[dtype])
        for file, dataset, start, _, _, offset, extent in boxes:
            bits = _bits(files[file][dataset], whole.dtype)
            if start is not None:
                bits = bits[start : start + int(np.prod(extent, dtype=np.int64))].reshape(extent)
            whole[tuple(slice(a, a + n) for a, n in zip(offset, extent, strict=True))] = bits
        found[name] = (dtype, whole)
    for file in files:
        file.close()
    return found


def _bits(dataset: h5py.Dataset, kind: np.dtype) -> np.ndarray:
    """The elements as they lie in the file: read in the file's own type, so that HDF5 converts nothing."""
    held = np.empty(dataset.shape, kind)
    dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, held, mtype=dataset.id.get_type())
    return held


def every_kind(rng: np.random.Generator) -> dict[str, tuple[str, np.ndarray]]:
    """Tensors of every element type, random bits: scalars, vectors, matrices in panels, one of three dims, empty ones."""
    shapes = {"scalar": (), "vector": (700,), "small": (13, 9), "cube": (5, 4, 3), "empty": (0, 4)}
    made = {f"model/{kind}.{name}": (kind, random(rng, kind, shape)) for kind in CARRIERS for name, shape in shapes.items()}
    made["optimizer/wide/exp_avg"] = ("float32", random(rng, "float32", (1024, 1024)))
    made["model/wide"] = ("bfloat16", random(rng, "bfloat16", (1100, 2048)))
    made["ema/wide"] = ("float32", random(rng, "float32", (300, 1000)))
    made["rng/pp0-dp0-ep0-cp0-tp0/cpu"] = ("uint8", random(rng, "uint8", (5056,)))
    return made


def random(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Any bits, NaNs among them."""
    carrier = np.dtype(CARRIERS[kind])
    if kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(rng.bytes(count * carrier.itemsize), carrier).reshape(shape).copy()


def same(a: dict[str, tuple[str, np.ndarray]], b: dict[str, tuple[str, np.ndarray]]) -> list[str]:
    """Names that differ in type, shape or bits, or are on one side alone."""
    return sorted(
        {*a.keys() ^ b.keys()}
        | {
            name
            for name in a.keys() & b.keys()
            if a[name][0] != b[name][0] or a[name][1].shape != b[name][1].shape or a[name][1].tobytes() != b[name][1].tobytes()
        }
    )
