"""How fast a device multiplies, and whether it multiplies right.

The checked product is of whole numbers of at most 6 bits over an inner length of 1024: each sum is below 2^22, so that fp32 holds it
exactly in whatever order a kernel adds, and its rounding to bf16 is the same on every device. Two checksums differ where one is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from statistics import median

import torch

from slurmtrain.preflight.probing import Order, Reply
from slurmtrain.runtime.probe.deadline import Deadline

ROWS = {"cpu": 512, "cuda": 8192}
"""Of the square matrices whose product is timed."""
REPEATS = {"cpu": 20, "cuda": 30}
WARM = {"cpu": 1, "cuda": 20}
CHECKED_ROWS = {"cpu": 256, "cuda": 4096}
INNER = 1024
_DIGITS = 16


def measure(order: Order, device: torch.device, model: str, deadline: Deadline) -> Reply:
    """Rate of a square bf16 product: 2 n^3 operations, median of the repeats; and the checksum. `model`: name of the device."""
    rows = order.sizes[0] if order.sizes else ROWS[device.type]
    a, b = (torch.full((rows, rows), 1.0 / rows, dtype=torch.bfloat16, device=device) for _ in range(2))
    out = torch.empty_like(a)

    def once() -> None:
        torch.mm(a, b, out=out)

    for _ in range(WARM[device.type]):
        _seconds(once, device, deadline)
    seconds = median(_seconds(once, device, deadline) for _ in range(order.repeats or REPEATS[device.type]))
    figures = {"tflops": 2 * rows**3 / seconds / 1e12, "seconds": seconds, "size": float(rows)}
    return Reply(ok=True, figures=figures, words={"device": model, "checksum": checksum(CHECKED_ROWS[device.type], device)})


def inputs(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fixed factors [rows, INNER] and [INNER, rows] of whole numbers from -63 to 63, in int64.

    Element (i, j): (37 i + 101 j + 7 (i j mod 89)) mod 127 - 63, and (53 i + 29 j + 11 (i j mod 97)) mod 127 - 63.
    """
    i, j = torch.arange(rows)[:, None], torch.arange(INNER)[None, :]
    left = (37 * i + 101 * j + 7 * (i * j % 89)) % 127 - 63
    i, j = torch.arange(INNER)[:, None], torch.arange(rows)[None, :]
    return left, (53 * i + 29 * j + 11 * (i * j % 97)) % 127 - 63


def checksum(rows: int, device: torch.device) -> str:
    """First digits of the SHA-256 of the product's bytes."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    left, right = (factor.to(device=device, dtype=torch.bfloat16) for factor in inputs(rows))
    product = (left @ right).cpu().contiguous()
    return hashlib.sha256(product.view(torch.int16).numpy().tobytes()).hexdigest()[:_DIGITS]


def _seconds(deed: Callable[[], None], device: torch.device, deadline: Deadline) -> float:
    deadline.check("the product")
    if device.type != "cuda":
        began = deadline.clock.monotonic()
        deed()
        return max(1e-9, deadline.clock.monotonic() - began)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    deed()
    end.record()
    end.synchronize()
    return max(1e-9, start.elapsed_time(end) / 1e3)
