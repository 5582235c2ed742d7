"""ddp: everything on every rank; gradients are summed whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from slurmtrain.parallel.axis import Axis, Pending
from slurmtrain.parallel.buckets import Held


class WholeBucket:
    """All of some parameters. In fp32 the values are the module's own and `grad` of each parameter is a view of the bucket; in other
    dtypes fp32 masters are kept here, and each pass's gradient is added up in fp32 and dropped.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], axis: Axis | None, dtype: torch.dtype, wire: torch.dtype) -> None:
        self._parameters, self._axis, self._wire = parameters, axis, wire
        self._direct = dtype == torch.float32
        self._flat, self._grads = _flat_like(parameters)
        self._pending: Pending | None = None
        values = [p.detach() for p in parameters]
        if not self._direct:
            _, masters = _flat_like(parameters)
            torch._foreach_copy_(masters, values)
            values = masters
            for parameter in parameters:
                parameter.data = parameter.data.to(dtype)
        self.held: Sequence[Held] = [Held(value, grad) for value, grad in zip(values, self._grads, strict=True)]

    def zero(self) -> None:
        self._flat.zero_()
        for parameter, grad in zip(self._parameters, self._grads, strict=True):
            parameter.grad = grad if self._direct else None

    def take(self, place: int) -> None:
        parameter, grad = self._parameters[place], self._grads[place]
        if parameter.grad is not None and parameter.grad is not grad:
            grad.add_(parameter.grad)
            parameter.grad = grad if self._direct else None

    def send(self) -> None:
        if self._axis is not None:
            self._pending = self._axis.start_all_reduce(self._flat.to(self._wire))

    def relay(self) -> None:
        """There is one sum."""

    def receive(self) -> None:
        if self._pending is not None:
            summed = self._pending.wait()
            if summed is not self._flat:
                self._flat.copy_(summed)
            self._pending = None

    def start_publish(self) -> None:
        if not self._direct:
            torch._foreach_copy_([p.detach() for p in self._parameters], [one.value for one in self.held])

    def end_publish(self) -> None:
        """Nothing is under way."""


def _flat_like(parameters: Sequence[nn.Parameter]) -> tuple[Tensor, list[Tensor]]:
    """Zeros in fp32, and the view of each parameter."""
    sizes = [p.numel() for p in parameters]
    flat = torch.zeros(sum(sizes), device=parameters[0].device)
    return flat, [piece.view(p.shape) for p, piece in zip(parameters, flat.split(sizes), strict=True)]


class Alone:
    """A Reducer for one rank in fp32: gradients are autograd's own."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.holders: Mapping[str, InModule] = {name: InModule(p) for name, p in parameters.items()}

    def start(self, passes: int) -> None:  # noqa: ARG002 of the protocol
        for holder in self.holders.values():
            holder.parameter.grad = None

    def before_backward(self, last: bool) -> None:  # noqa: FBT001 the runner's callback
        """Nothing is reduced."""

    def finish(self) -> None:
        for holder in self.holders.values():
            holder.fill()

    def publish(self) -> None:
        """The values are the module's own."""


class InModule:
    """A Holder of what a module's parameter has; of an FSDP2 parameter, this rank's rows."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter

    @property
    def value(self) -> Tensor:
        return _local(self.parameter)

    @property
    def grad(self) -> Tensor:
        assert self.parameter.grad is not None, "gradients are there after the reducer's `finish`"
        return _local(self.parameter.grad)

    def fill(self) -> None:
        """Zeros for a parameter that no pass reached."""
        if self.parameter.grad is None:
            self.parameter.grad = torch.zeros_like(self.parameter)


def _local(tensor: Tensor) -> Tensor:
    local = getattr(tensor, "_local_tensor", None)
    return tensor.detach() if local is None else local
