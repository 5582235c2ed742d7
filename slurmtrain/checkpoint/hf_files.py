"""The safetensors of a folder, opened with one clear line for every way to fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from slurmtrain.config.weights import weight_files
from slurmtrain.errors import CheckpointError


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
