"""`python -m slurmtrain.runtime.probe HOST:PORT`. What a probe cannot begin with (no GPU, no address) is its hello, not a crash."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from slurmtrain.clock import Clock, SystemClock
from slurmtrain.errors import ConfigError, one_line
from slurmtrain.fabric.rendezvous import Endpoint, choose_endpoint, local_interfaces, set_socket_interfaces
from slurmtrain.preflight.answer import node_name
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.probing import DEVICE, INTERFACE, TASKS, TOKEN, Order
from slurmtrain.runtime.device import gpu_index
from slurmtrain.runtime.probe.deadline import Deadline
from slurmtrain.runtime.probe.link import Link
from slurmtrain.runtime.probe.nccl import Words
from slurmtrain.shell import SystemShell

CONNECT_S = 60.0
AGAIN_S = 0.5


def local_rank(environ: Mapping[str, str], tasks: int) -> int:
    """SLURM_LOCALID of srun, else the place among the tasks of this node that mpiexec's rank gives (it starts node after node)."""
    if environ.get("SLURM_LOCALID", "").isdigit():
        return int(environ["SLURM_LOCALID"])
    rank = environ.get("PMI_RANK", "")
    return int(rank) % tasks if rank.isdigit() else 0


def own_end(environ: MutableMapping[str, str], sock: socket.socket) -> str:
    """Address of this host for the stores of groups; sets gloo's and NCCL's interfaces. Raises ConfigError for one that is not there.

    Without a rendezvous_interface: the one by which the conductor is reached.
    """
    wanted, interfaces = environ.get(INTERFACE), local_interfaces()
    if wanted:
        endpoint = choose_endpoint(wanted, interfaces, one_node=False, default=None)
    else:
        address = str(sock.getsockname()[0])
        endpoint = Endpoint(next((name for name, addresses in interfaces.items() if address in addresses), ""), address)
    if endpoint.interface:
        set_socket_interfaces(environ, wanted or None, endpoint)
    return endpoint.address


def connect(where: str, clock: Clock) -> socket.socket:
    """Raises OSError when the conductor cannot be reached."""
    host, _, port = where.rpartition(":")
    deadline = Deadline.after(clock, CONNECT_S)
    while True:
        try:
            return socket.create_connection((host.strip("[]"), int(port)), timeout=deadline.left_s())
        except OSError:
            if clock.monotonic() >= deadline.at:
                raise
            clock.sleep(AGAIN_S)


def cpu_model(machine: Machine) -> str:
    """Name of this host's CPU."""
    lines = machine.text_or("/proc/cpuinfo").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def make_bench(name: str, node: str, rank: int, sock: socket.socket, machine: Machine) -> Any:
    """Device, address and NCCL's surroundings; torch is loaded here. Raises ConfigError, ImportError, RuntimeError."""
    kind, tasks = os.environ.get(DEVICE, "cpu"), int(os.environ.get(TASKS, "1"))
    address = own_end(os.environ, sock)
    words = Words("nccl" if kind == "cuda" else "gloo")
    os.environ.update(words.environment())

    import torch  # noqa: PLC0415 with its surroundings set

    from slurmtrain.runtime.probe.orders import Bench  # noqa: PLC0415 as above

    if kind != "cuda":
        return Bench(name, address, torch.device("cpu"), cpu_model(machine), words, machine)
    index = gpu_index(torch.cuda.device_count(), rank, tasks, node=node, seen=os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    torch.cuda.set_device(index)
    return Bench(name, address, torch.device("cuda", index), torch.cuda.get_device_name(index), words, machine)


def obey(link: Link, bench: Any, clock: Clock) -> None:
    """Carry out orders, without end."""
    from slurmtrain.runtime.probe.orders import place_of  # noqa: PLC0415 torch is loaded by now

    for message in link.orders():
        deadline = Deadline.after(clock, float(message["limit_s"]))

        def offer(host: str, port: int, number: Any = message["id"]) -> None:
            link.say({"id": number, "host": host, "port": port})

        link.reply(bench.carry_out(Order.from_json(message["order"]), place_of(message["group"]), deadline, offer))


def restart() -> None:
    """The same program again, in this process's place: whatever its threads hang in."""
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 no shell is wanted


def main(argv: Sequence[str]) -> int:
    """Exit code 1: the conductor cannot be reached."""
    clock = SystemClock()
    node, rank = node_name(os.environ), local_rank(os.environ, int(os.environ.get(TASKS, "1")))
    try:
        sock = connect(argv[0], clock)
    except OSError as error:
        sys.stderr.write(f"{node}: the conductor of the preflight at {argv[0]} cannot be reached: {error}\n")
        return 1
    link = Link(sock, clock, restart)
    bench, problem = None, ""
    try:
        bench = make_bench(f"{node}/{rank}", node, rank, sock, Machine(SystemShell(), os.environ, clock, Path("/")))
    except (ConfigError, ImportError, RuntimeError, OSError) as error:
        problem = one_line(str(error))
    link.say({"hello": {"token": os.environ.get(TOKEN, ""), "node": node, "local": rank, "problem": problem}})
    obey(link, bench, clock)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
