"""What a layer's first pass keeps for the pass that makes its activations again: results of dear operations, which are not run again.

Two modes see every operation of their pass: `Record` keeps the results of some, `Replay` gives them back in the same order. They do
what torch's selective checkpointing does, and two things more: a replay may be repeated, as schedules need it that make input and
weight gradients at different times; and collectives are kept, which write into tensors that they were given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_map

Result = TypeVar("Result")
_KEPT = (
    "aten::mm",
    "aten::addmm",
    "aten::_scaled_mm",
    "aten::_grouped_mm",
    "aten::_scaled_grouped_mm",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "_c10d_functional::all_gather_into_tensor",
    "_c10d_functional::reduce_scatter_tensor",
    "_c10d_functional::all_to_all_single",
    "_c10d_functional::wait_tensor",
)


def is_dear(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Matrix products, fused attention, collectives. Not attention with dropout: what draws random numbers must draw them again,
    else the draws after it would be others.
    """
    return func._schema.name in _KEPT and not _argument(func, args, kwargs, "dropout_p")


def _argument(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    names = [argument.name for argument in func._schema.arguments]
    place = names.index(name) if name in names else len(args)
    return args[place] if place < len(args) else kwargs.get(name)


class _Keeping(TorchDispatchMode, ABC):
    """`results`: what was kept, by what made it, in its order."""

    def __init__(self, results: dict[Any, list[Any]]) -> None:
        super().__init__()
        self.results = results
        self.within = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if self.within or not is_dear(func, args, kwargs):
            return func(*args, **kwargs)
        return self.take(func, lambda: func(*args, **kwargs))

    @abstractmethod
    def take(self, key: Any, make: Callable[[], Result]) -> Result:
        """`make()`, or what it gave before."""


class Record(_Keeping):
    """The first pass."""

    def take(self, key: Any, make: Callable[[], Result]) -> Result:
        self.within = True  # kept as a whole, not by its parts
        try:
            out = make()
            self.results.setdefault(key, []).append(tree_map(_plain, out))
        finally:
            self.within = False
        return out


class Replay(_Keeping):
    """A pass made again."""

    def __enter__(self) -> Any:
        self._taken: dict[Any, int] = {}
        return super().__enter__()

    def take(self, key: Any, make: Callable[[], Result]) -> Result:  # noqa: ARG002 not made again
        number = self._taken.get(key, 0)
        self._taken[key] = number + 1
        return tree_map(_plain, self.results[key][number])


def kept(key: str, make: Callable[[], Result]) -> Result:
    """`make()`; where a layer's activations are made again, what it gave the first time.

    `make` gives tensors and what is to be waited for until they are there; the second time there is nothing to wait for.
    """
    mode = None if torch.compiler.is_compiling() else _get_current_dispatch_mode()
    return mode.take(key, make) if isinstance(mode, _Keeping) else make()


def _plain(x: Any) -> Any:
    """A tensor's memory without its history: what autograd will say of the result stays out of what is kept."""
    if isinstance(x, Tensor):
        return x.detach()
    return None if isinstance(x, dist.Work) else x
