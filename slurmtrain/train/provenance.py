"""What made a checkpoint: the resolved job, versions of what computed it, and the code that ran; it travels in the plain values."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from slurmtrain import __version__
from slurmtrain.checkpoint.group import Group
from slurmtrain.config.changes import stored
from slurmtrain.config.job import JobConfig
from slurmtrain.rundir import RunDir

_BLOCK = 1 << 20


def made_by(run: RunDir, job: JobConfig, group: Group) -> dict[str, Any]:
    """`job`, `versions` and `code` of a checkpoint's state, the same on all ranks. Collective; rank 0 alone reads the code."""
    return {"job": stored(job), "versions": versions(), "code": group.broadcast(code_digest(run.code) if group.rank == 0 else None)}


def versions() -> dict[str, str]:
    """Of what decides about numbers."""
    return {
        "slurmtrain": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def code_digest(folder: Path) -> str | None:
    """A word for names and contents of the files of a run's code; None where there are none, or they cannot be read.

    Code that runs where it is (`run.live`) may change under the run: it has none.
    """
    if folder.is_symlink() or not folder.is_dir():
        return None
    total, files = xxhash.xxh3_128(), 0
    try:
        for path in _files(folder):
            total.update(f"{path.relative_to(folder)}\0".encode(errors="surrogateescape"))
            total.update(_content(path))
            files += 1
    except OSError:
        return None
    return total.hexdigest() if files else None


def _files(folder: Path) -> list[Path]:
    found = []
    for inner, names, files in os.walk(folder):
        names[:] = [name for name in names if name != "__pycache__"]
        found += [Path(inner) / name for name in files]
    return sorted(found)


def _content(path: Path) -> bytes:
    """The sum of a file's bytes; of a link where it points."""
    if path.is_symlink():
        return os.fsencode(path.readlink())
    one = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            one.update(block)
    return one.digest()
