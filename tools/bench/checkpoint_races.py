"""Which races the benchmark runs."""

from __future__ import annotations

from collections.abc import Sequence

from checkpoint_resume import Resumes
from checkpoint_rows import Files, Race, Slices, size_name
from checkpoint_stall import Stalls
from checkpoint_state import Tensors

LARGE = (0.95, 0.95, 0.6)
SMALL = (0.5, 0.5, 0.5)


def races(*, quick: bool) -> Sequence[Race]:
    if quick:
        files = [_files(16, (256, 256), ranks) for ranks in (1, 2)]
        return (*files, _small(200, 1), Slices(1024), Stalls(Tensors(8, (256, 256)), 1), Resumes(Tensors(4, (512, 512), cut=0), 2))
    files = [_files(count, (1024, 4096), ranks) for count in (60, 240) for ranks in (1, 2, 4)]
    stalls = [Stalls(Tensors(60, (1024, 4096)), ranks) for ranks in (1, 2)]
    return (*files, _small(4000, 3), Slices(8192), *stalls, Resumes(Tensors(64, (4096, 2048), cut=0), 8))


def _files(count: int, shape: tuple[int, int], ranks: int) -> Files:
    tensors = Tensors(count, shape)
    return Files(size_name(tensors.nbytes), tensors, ranks, LARGE)


def _small(count: int, rate: int) -> Files:
    return Files(f"{count:,} x 8 kB", Tensors(count, (2048,)), 1, SMALL, rate)
