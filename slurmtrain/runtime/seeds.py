"""Seeds per purpose and mesh axis, and the state of the random generators as tensors.

| purpose | differs along | same for | used for |
|---|---|---|---|
| `model` | nothing | the whole world | initialisation: each global tensor draws from its own generator, whatever the layout |
| `data` | nothing | the whole world | order of samples: a function of seed, epoch and index |
| `replicated` | pp, dp, ep, cp | a TP group | activations that all TP ranks hold whole (dropout outside sequence parallelism) |
| `sharded` | pp, dp, ep, cp, tp | nobody | activations of which each TP rank holds its own part |
"""

from __future__ import annotations

import hashlib
import random
from typing import Literal

import numpy as np
import torch

Purpose = Literal["model", "data", "replicated", "sharded"]
DIFFERS_ALONG: dict[Purpose, tuple[str, ...]] = {
    "model": (),
    "data": (),
    "replicated": ("pp", "dp", "ep", "cp"),
    "sharded": ("pp", "dp", "ep", "cp", "tp"),
}


def seed_for(seed: int, *, pp: int = 0, dp: int = 0, cp: int = 0, ep: int = 0, tp: int = 0, purpose: Purpose) -> int:
    """A seed of 63 bits from the run's seed, the purpose, and the coordinates along which the purpose differs.

    Hashed (blake2b), not added: neighbours in (seed, dp, pp, ...) must not meet in the same stream.
    """
    at = {"pp": pp, "dp": dp, "ep": ep, "cp": cp, "tp": tp}
    text = ":".join([str(seed), purpose, *(f"{axis}{at[axis]}" for axis in DIFFERS_ALONG[purpose])])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch (CPU and the current GPU)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 the global generator is what libraries draw from
    torch.manual_seed(seed)


def rng_state() -> dict[str, torch.Tensor]:
    """States of torch's generators as uint8 CPU tensors: "cpu", and "cuda" for the current GPU where CUDA is in use."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, torch.Tensor]) -> None:
    """Put back what `rng_state` gave; a "cuda" state is left out on a CPU."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
