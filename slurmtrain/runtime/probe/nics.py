"""Each NIC's rate to its namesake of another node, one after another and in both directions, by ib_write_bw (preflight/perftest.py)."""

from __future__ import annotations

import json
import shutil
import socket
from typing import Any

from slurmtrain.errors import one_line
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.perftest import PROGRAM, SECONDS, average_gbps, write_bw_argv
from slurmtrain.preflight.probing import Order, Reply
from slurmtrain.runtime.probe.deadline import Deadline
from slurmtrain.runtime.probe.meeting import MeetingError, Place

RUN_S = SECONDS + 10.0
"""The most that one run takes."""
CONNECT_S, AGAIN_S = 5.0, 0.2
"""How long a client tries to find its server, and how often."""
_REFUSED = "Couldn't connect to"
"""What a client says where no server listens yet."""
_FOLDER = "/sys/class/infiniband"
_LINKS = ("InfiniBand", "Ethernet")
"""Link layers that ib_write_bw can use; EFA's is neither."""


def measure(order: Order, place: Place, store: Any, *, address: str, machine: Machine, deadline: Deadline) -> Reply:
    """Figures of this member's NICs as senders. Collective of two. Not ok where a NIC gave no rate: the others' are there.

    `address`: of this host, for the other's clients.
    """
    if place.size != 2:
        raise MeetingError(f"a pair has two members, not {place.size}")
    has = shutil.which(PROGRAM, path=machine.environ.get("PATH")) is not None
    mine: dict[str, Any] = {"has": has, "nics": list(order.nics) or active_nics(machine), "address": address}
    store.set(f"nics/{place.rank}", json.dumps(mine))
    other = json.loads(store.get(f"nics/{1 - place.rank}"))
    nics = [nic for nic in mine["nics"] if nic in other["nics"]]
    if not (has and other["has"]):
        return Reply(ok=True, words={"skipped": f"{PROGRAM} of perftest is not installed"})
    if not nics:
        return Reply(ok=True, words={"skipped": "no NIC of one name is up on both nodes"})
    figures: dict[str, float] = {}
    faults: list[str] = []
    for sender in (0, 1):
        for nic in nics if place.rank == 0 else [nic for nic in other["nics"] if nic in nics]:
            key = f"{sender}/{nic}"
            if place.rank != sender:
                _serve(nic, key, store, machine, deadline)
            elif isinstance(found := _send(nic, int(store.get(key)), other["address"], machine, deadline), float):
                figures[f"{nic}.write_gbps"] = found
            else:
                faults.append(f"{nic}: {found}")
    return Reply(ok=not faults, said="; ".join(faults), figures=figures)


def active_nics(machine: Machine) -> list[str]:
    """Devices with a port that is up and of a kind that ib_write_bw can use."""
    found = []
    for nic in machine.names(_FOLDER):
        ports = [f"{_FOLDER}/{nic}/ports/{port}" for port in machine.names(f"{_FOLDER}/{nic}/ports")]
        if any("ACTIVE" in machine.text_or(f"{port}/state") and machine.text_or(f"{port}/link_layer") in _LINKS for port in ports):
            found.append(nic)
    return found


def _serve(nic: str, key: str, store: Any, machine: Machine, deadline: Deadline) -> None:
    """Wait for one client. `timeout` ends a server whose probe was killed."""
    port = _free_port()
    limit_s = min(RUN_S + CONNECT_S, deadline.left_s())
    store.set(key, str(port))
    argv = write_bw_argv(nic, port, environ=machine.environ)
    machine.run("timeout", "-k", "1", str(int(limit_s) + 1), *argv, timeout_s=limit_s)


def _send(nic: str, port: int, address: str, machine: Machine, deadline: Deadline) -> float | str:
    """The rate in Gbit/s, or the last line of what went wrong. A server that does not listen yet refuses, and is tried again."""
    patience = Deadline.after(deadline.clock, min(CONNECT_S, deadline.left_s()))
    argv = write_bw_argv(nic, port, server=address, environ=machine.environ)
    while True:
        done = machine.run(*argv, timeout_s=min(RUN_S, deadline.left_s()))
        rate = average_gbps(done.out) if done.ok else None
        if rate is not None:
            return rate
        if _REFUSED not in done.err + done.out or patience.clock.monotonic() >= patience.at:
            said = (done.err.strip() or done.out.strip() or "it printed nothing").splitlines()[-1]
            return one_line(f"{PROGRAM} ended with {done.rc}: {said}", 160)
        patience.clock.sleep(AGAIN_S)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])
