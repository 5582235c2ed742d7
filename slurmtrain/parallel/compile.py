"""torch.compile of each layer. Names stay: the layer's call is compiled in place."""

from __future__ import annotations

from typing import Literal

import torch

from slurmtrain.parallel.recompute import Layered
from slurmtrain.parallel.ring import Ring

Backend = Literal["off", "inductor", "aot_eager"]


def compile_blocks(stage: Layered, backend: Backend) -> None:
    """Compile every layer of the stage, after `recompute` and before FSDP2; the first pass of each shape pays for it.

    Ring attention stays as it is, and the layer is compiled in pieces around it: its transfers cannot be traced.
    """
    if backend == "off":
        return
    for layer in stage.layers.values():
        for module in layer.modules():
            if isinstance(getattr(module, "attend", None), Ring):
                module.attend = torch.compiler.disable(module.attend.__call__)  # type: ignore[operator]
        layer.compile(backend=backend, dynamic=False)
