"""The same checkpoint in another number of files: for moving and archiving. No layout needs it, for loading takes any boxes.

Every element is read with its sum compared, and written as it was, bit for bit; step, state and time stay as they are.
"""

from __future__ import annotations

from pathlib import Path

from slurmtrain.checkpoint.cuts import Sizing
from slurmtrain.checkpoint.load import PartReader
from slurmtrain.checkpoint.making import Advance, Made, in_turn, kinds_of, make, plan
from slurmtrain.store.manifest import Manifest
from slurmtrain.syscalls import SYSTEM, Syscalls


def reshard(
    folder: Path,
    manifest: Manifest,
    out: Path,
    sizing: Sizing,
    *,
    calls: Syscalls = SYSTEM,
    advance: Advance = lambda _: None,
) -> Made:
    """Write the checkpoint as the new folder `out`: whole tensors, large ones in even runs of rows.

    Raises CorruptCheckpointError naming tensor and file where a byte differs from what was written, UserError and CheckpointError of
    `making.make`.
    """
    kinds = kinds_of(manifest)
    with PartReader(folder, manifest) as reader:
        return Made(make(out, manifest, kinds, plan(kinds, sizing), lambda specs: in_turn(reader, specs), calls=calls, advance=advance))
