"""The safetensors of a folder, opened with one clear line for every way to fail; what they hold, without reading it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from slurmtrain.config.weights import weight_files
from slurmtrain.errors import CheckpointError

TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Element types that are read, by their names in a file."""


@contextmanager
def opened(path: Path, framework: Literal["pt", "numpy"]) -> Iterator[Any]:
    """A file by `safetensors.safe_open`. Raises CheckpointError naming it."""
    try:
        with safe_open(path, framework=framework) as source:
            yield source
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cut off or damaged, fetch it again: {error}") from error


def tensor_files(folder: Path) -> dict[str, Path]:
    """The file of each tensor of a folder. Raises ConfigError where there are none, CheckpointError for one that is damaged."""
    found = weight_files(folder)
    if isinstance(found, Mapping):
        return dict(found)
    with opened(found, "numpy") as source:
        return dict.fromkeys(source.keys(), found)


def element_types(folder: Path) -> Counter[str]:
    """How many tensors there are of each element type, by the types' names in the files (F32, BF16, ...)."""
    counts: Counter[str] = Counter()
    for path in sorted(set(tensor_files(folder).values())):
        with opened(path, "numpy") as source:
            counts.update(source.get_slice(name).get_dtype() for name in source.keys())  # noqa: SIM118 no mapping
    return counts
