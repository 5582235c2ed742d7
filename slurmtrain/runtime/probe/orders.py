"""An order, carried out: what it does, and the one line that is said where it fails."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slurmtrain.errors import one_line
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.probing import Order, Reply
from slurmtrain.runtime.probe import exchange, matmul, nics, storage
from slurmtrain.runtime.probe.deadline import Deadline
from slurmtrain.runtime.probe.meeting import Place, meeting, process_group
from slurmtrain.runtime.probe.nccl import Words

Offer = Callable[[str, int], None]


@dataclass(frozen=True)
class Bench:
    """What a probe measures with. `name`: of the member; `address`: of this host; `model`: name of the device; `words`: NCCL's."""

    name: str
    address: str
    device: torch.device
    model: str
    words: Words
    machine: Machine

    def carry_out(self, order: Order, place: Place | None, deadline: Deadline, offer: Offer) -> Reply:
        """Never raises: whatever goes wrong, the conductor hears of it."""
        try:
            return self._alone(order, deadline) if place is None else self._together(order, place, deadline, offer)
        except Exception as error:  # noqa: BLE001 as said
            reply = Reply(ok=False, said=one_line(f"{order.do}: {error}" if str(error) else f"{order.do}: {type(error).__name__}"))
        gc.collect()  # a traceback may hold the store, and its port
        return reply

    def _alone(self, order: Order, deadline: Deadline) -> Reply:
        if order.do == "matmul":
            return matmul.measure(order, self.device, self.model, deadline)
        if order.do == "storage":
            return storage.measure(Path(order.folder), order.bytes or storage.DEFAULT_BYTES, self.name, deadline)
        if order.do == "transport":
            return Reply(ok=True, words={"transport": self.words.of_all()})
        return Reply(ok=False, said=f"{order.do} is for a group")

    def _together(self, order: Order, place: Place, deadline: Deadline, offer: Offer) -> Reply:
        deeds = {"reduce": exchange.reduce, "pair": exchange.pair}
        if order.do != "nic" and order.do not in deeds:
            return Reply(ok=False, said=f"{order.do} is not for a group")
        with meeting(place, deadline, self.address, offer) as store:
            if order.do == "nic":
                return nics.measure(order, place, store, address=self.address, machine=self.machine, deadline=deadline)
            try:
                with process_group(store, place, self.device, deadline):
                    figures = deeds[order.do](order, place, self.device, deadline)
            finally:
                used = self.words.of_this_group()
        return Reply(ok=True, figures=figures, words={"transport": used})


def place_of(raw: dict[str, Any] | None) -> Place | None:
    """What the conductor says about a group. Raises KeyError, ValueError, TypeError."""
    if raw is None:
        return None
    return Place(int(raw["rank"]), int(raw["size"]), tuple(raw["names"]), str(raw["host"]), int(raw["port"]))
