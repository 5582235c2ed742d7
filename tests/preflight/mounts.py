"""File systems of a test's own: a small tmpfs, an ext4 on a loop device, a read-only view. Root alone can mount; without it tests skip."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False)


@contextmanager
def mounted(*options: str | Path) -> Iterator[Path]:
    """`mount OPTIONS FOLDER`; a folder that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="preflight-") as above:
        Path(above).chmod(0o755)
        point = Path(above) / "mnt"
        point.mkdir()
        done = run("mount", *options, point)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
        try:
            yield point
        finally:
            run("umount", "-l", point)


@contextmanager
def ext4(folder: Path, mib: int = 8) -> Iterator[Path]:
    """A small ext4 on a loop device, whose image lies in the folder."""
    image = folder / "ext4.img"
    with open(image, "wb") as file:
        file.truncate(mib << 20)
    if run("mkfs.ext4", "-q", image).returncode:
        pytest.skip("there is no mkfs.ext4")
    with mounted("-o", "loop", image) as point:
        yield point
