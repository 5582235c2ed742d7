"""A group for one order: its store, the roll call, the process group, and the parting.

The roll call by the store costs a few round trips, and finds a member that is dead or stopped before a backend waits for it: gloo would
end with its time-out and no name, NCCL's start cannot be ended from outside. Nothing of a group is left when the context is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from slurmtrain.errors import one_line
from slurmtrain.runtime.probe.deadline import Deadline
from slurmtrain.runtime.process_group import TCPStore

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
CALL_SHARE, HEAR_SHARE = 0.6, 0.85
"""Of the time that is left: how long the first waits for all, and how long the others wait for its word; it must come before they leave."""
MESSAGE_SHARE = 0.5
"""How long gloo waits for one message: destroying a group waits for the messages that are under way, and must be over in time."""
PARTING_S = 2.0
PRIVATE: Any = dist.distributed_c10d
PrefixStore: Any = dist.PrefixStore  # type: ignore[attr-defined]


class MeetingError(Exception):
    """A group did not come together, or not to the end. One line, with the names of those who are missing."""


@dataclass(frozen=True)
class Place:
    """One member's in a group. `names`: of all, by rank; the first alone knows them. `host`, `port`: of the store, unknown to the first."""

    rank: int
    size: int
    names: tuple[str, ...] = ()
    host: str = ""
    port: int = 0


@contextlib.contextmanager
def meeting(place: Place, deadline: Deadline, address: str, offer: Callable[[str, int], None]) -> Iterator[Any]:
    """The store of a group whose members are all there. `offer`: tells the others, through the conductor, where the first one's store is.

    Raises MeetingError, with names, when someone does not come.
    """
    store = _store(place, deadline, address, offer)
    _roll_call(store, place, deadline)
    yield store
    _part(store, place, deadline)


@contextlib.contextmanager
def process_group(store: Any, place: Place, device: torch.device, deadline: Deadline) -> Iterator[None]:
    """The default process group over a meeting. After an error NCCL's communicator is aborted: it must not be waited for.

    Raises RuntimeError as torch does.
    """
    try:
        dist.init_process_group(
            BACKENDS[device.type],
            store=PrefixStore("group", store),
            rank=place.rank,
            world_size=place.size,
            timeout=deadline.delta(MESSAGE_SHARE),
            device_id=device if device.type == "cuda" else None,
        )
        yield
    except BaseException:
        _abandon(device)
        raise
    dist.destroy_process_group()


def _abandon(device: torch.device) -> None:
    """Leave a group in which something failed; whatever that says, the first error counts."""
    if not dist.is_initialized():
        return
    with contextlib.suppress(RuntimeError, ValueError):
        if device.type == "cuda":
            PRIVATE._abort_process_group()
        else:
            dist.destroy_process_group()


def _store(place: Place, deadline: Deadline, address: str, offer: Callable[[str, int], None]) -> Any:
    try:
        if place.rank == 0:
            store = TCPStore(address, 0, place.size, is_master=True, wait_for_workers=False, timeout=deadline.delta())
            offer(address, store.port)
            return store
        return TCPStore(place.host, place.port, place.size, is_master=False, timeout=deadline.delta())
    except RuntimeError as error:
        where = f"{address or 'this host'}" if place.rank == 0 else f"{place.host} port {place.port}"
        raise MeetingError(f"no store at {where}: {one_line(str(error), 160)}") from None


def _roll_call(store: Any, place: Place, deadline: Deadline) -> None:
    keys = [f"here/{rank}" for rank in range(place.size)]
    try:
        store.set(keys[place.rank], "")
        if place.rank != 0:
            store.wait(["all"], deadline.delta(HEAR_SHARE))
            missing = store.get("all").decode()
        else:
            missing = _missing(store, place, keys, deadline)
            store.set("all", missing)
    except RuntimeError as error:
        raise MeetingError(f"the roll call ended early: {one_line(str(error), 160)}") from None
    if missing:
        raise MeetingError(f"did not come: {missing}")


def _missing(store: Any, place: Place, keys: list[str], deadline: Deadline) -> str:
    """Names of those who are not there when the first one's patience is over."""
    try:
        store.wait(keys, deadline.delta(CALL_SHARE))
    except RuntimeError:
        return ", ".join(name for name, key in zip(place.names, keys, strict=True) if not store.check([key]))
    return ""


def _part(store: Any, place: Place, deadline: Deadline) -> None:
    """The first leaves last: its store goes with it."""
    with contextlib.suppress(RuntimeError):
        store.set(f"left/{place.rank}", "")
        if place.rank == 0:
            patience = Deadline.after(deadline.clock, min(PARTING_S, deadline.left_s()))
            store.wait([f"left/{rank}" for rank in range(place.size)], patience.delta())
