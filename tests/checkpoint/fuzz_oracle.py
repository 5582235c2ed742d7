"""What a manifest says that the values of tensors are, worked out from its JSON and the bytes of the files alone: numpy and loops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

KINDS = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "i1",
    "uint64": "<u8",
    "uint32": "<u4",
    "uint16": "<u2",
    "uint8": "u1",
    "bool": "?",
    "float8_e4m3fn": "u1",
    "float8_e5m2": "u1",
}


class Told:
    """A manifest of format 2 and the files beside it. Any exception: it does not say that."""

    def __init__(self, folder: Path) -> None:
        self.raw: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
        self._folder, self._files = folder, dict[str, bytes]()

    def names(self) -> list[str]:
        return list(self.raw["tensors"])

    def kind(self, name: str) -> tuple[tuple[int, ...], str]:
        return tuple(self.raw["tensors"][name][1]), self.raw["tensors"][name][0]

    def value(self, name: str, start: Sequence[int], extent: Sequence[int]) -> np.ndarray:
        """Of a part of a tensor."""
        dtype, shape, *rest = self.raw["tensors"][name]
        rows = rest[0] if 0 not in extent else ()
        kind, stop = np.dtype(KINDS[dtype]), [a + b for a, b in zip(start, extent, strict=True)]
        content, seen = np.zeros(extent, kind), np.zeros(extent, np.int64)
        for row in rows:
            if len(row) != 7 or not len(row[5]) == len(row[6]) == len(shape):
                continue  # no box: the others must do
            number, _, _, at, panel, offset, extents = row
            if any(a >= high or a + b <= low for a, b, low, high in zip(offset, extents, start, stop, strict=True)):
                continue
            assert all(a >= 0 and a + b <= c for a, b, c in zip(offset, extents, shape, strict=True)), "a box outside the tensor"
            place = tuple(slice(max(a - low, 0), a + b - low) for a, b, low in zip(offset, extents, start, strict=True))
            inside = tuple(slice(max(low - a, 0), high - a) for a, low, high in zip(offset, start, stop, strict=True))
            content[place] = self._box(number, at, panel, extents, kind)[inside]
            seen[place] += 1
        assert (seen == 1).all(), "boxes that do not tile"
        return content

    def _box(self, number: int, at: int, panel: int, extents: list[int], kind: np.dtype) -> np.ndarray:
        data = self._bytes(list(self.raw["files"])[number])
        size = prod(extents) * kind.itemsize
        assert 0 <= at <= at + size <= len(data), "bytes outside the file"
        flat = np.frombuffer(data[at : at + size], kind)
        if not panel:
            return flat.reshape(extents)
        count, columns = extents
        assert columns % panel == 0
        return np.concatenate([one.reshape(count, panel) for one in flat.reshape(-1, count * panel)], axis=1)

    def sums_are_right(self) -> bool:
        """Of all files that the manifest names."""
        chunk = self.raw["chunk_bytes"]
        for name, (size, digits) in self.raw["files"].items():
            data = self._bytes(name)
            sums = [xxhash.xxh3_64(data[at : at + chunk]).hexdigest() for at in range(0, len(data), chunk)]
            if size != len(data) or "".join(sums) != digits:
                return False
        return True

    def _bytes(self, name: str) -> bytes:
        if name not in self._files:
            self._files[name] = (self._folder / name).read_bytes()
        return self._files[name]
