"""Parts of the probe without a conductor: the product, the link, the place among others."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.probing import DEVICE, Order, Reply, probe_command
from slurmtrain.runtime.probe.__main__ import local_rank, own_end
from slurmtrain.runtime.probe.deadline import Deadline, LateError
from slurmtrain.runtime.probe.matmul import INNER, checksum
from slurmtrain.runtime.probe.nccl import Words
from slurmtrain.runtime.probe.nics import active_nics
from slurmtrain.runtime.probe.storage import measure
from tests.fakes.clock import FakeClock
from tests.fakes.shell import FakeShell
from tests.mpi_world import ROOT, clean_environment


def test_the_product_is_that_of_whole_numbers():
    """Computed again in 64-bit integers, and rounded to bf16 by the bits: to nearest, ties to even."""
    rows = 32
    i, j = np.arange(rows)[:, None], np.arange(INNER)[None, :]
    left = (37 * i + 101 * j + 7 * (i * j % 89)) % 127 - 63
    i, j = np.arange(INNER)[:, None], np.arange(rows)[None, :]
    right = (53 * i + 29 * j + 11 * (i * j % 97)) % 127 - 63
    exact = left.astype(np.int64) @ right.astype(np.int64)
    assert np.abs(exact).max() < 1 << 22
    bits = exact.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    assert checksum(rows, torch.device("cpu")) == hashlib.sha256(rounded.tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("environ", "tasks", "rank"),
    [
        ({"SLURM_LOCALID": "3", "PMI_RANK": "9"}, 4, 3),
        ({"PMI_RANK": "9"}, 4, 1),
        ({"PMI_RANK": "9"}, 1, 0),
        ({}, 4, 0),
    ],
)
def test_the_local_rank_is_the_launchers(environ, tasks, rank):
    assert local_rank(environ, tasks) == rank


def test_the_own_end_is_where_the_conductor_is_reached():
    listener = socket.create_server(("127.0.0.1", 0))
    sock = socket.create_connection(listener.getsockname())
    environ: dict[str, str] = {}
    assert own_end(environ, sock) == "127.0.0.1"
    assert environ == {"GLOO_SOCKET_IFNAME": "lo"}, "NCCL searches by itself where the site names no interface"
    sock.close()
    listener.close()


def test_ports_that_are_up_and_no_efa(tmp_path):
    for nic, state, link in (
        ("mlx5_0", "4: ACTIVE", "InfiniBand"),
        ("mlx5_1", "1: DOWN", "InfiniBand"),
        ("rdmap1", "4: ACTIVE", "Unspecified"),
    ):
        port = tmp_path / "sys/class/infiniband" / nic / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "link_layer").write_text(link + "\n")
    assert active_nics(Machine(FakeShell(), {}, FakeClock(), tmp_path)) == ["mlx5_0"]


def test_ncclls_words_are_read_group_by_group():
    words = Words("nccl")
    path = words.environment()["NCCL_DEBUG_FILE"]
    with open(path, "w") as file:
        file.write("n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n")
        file.flush()
        assert words.of_this_group() == "P2P"
        file.write("n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n")
        file.flush()
        assert words.of_this_group() == "Socket"
    assert words.of_all() == "Socket P2P"


def test_a_write_that_takes_too_long_is_given_up_and_leaves_nothing(tmp_path):
    clock = FakeClock()
    deadline = Deadline.after(clock, -1.0)
    with pytest.raises(LateError, match="writing did not come to an end"):
        measure(tmp_path, 1 << 20, "n1/0", deadline)
    assert list(tmp_path.iterdir()) == []


STUCK = """
import os, socket, sys, threading
from slurmtrain.clock import SystemClock
from slurmtrain.preflight.probing import Reply
from slurmtrain.runtime.probe.__main__ import restart
from slurmtrain.runtime.probe.link import Link
link = Link(socket.create_connection(("127.0.0.1", int(sys.argv[1]))), SystemClock(), restart)
link.say({"hello": os.getpid()})
for message in link.orders():
    if message["order"]["do"] == "matmul":
        threading.Event().wait()
    link.reply(Reply(ok=True))
"""


def test_what_hangs_in_a_call_says_so_and_starts_anew_in_its_place(tmp_path):
    """Then it obeys again, and leaves when the connection ends, even in the middle of what hangs."""
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen([sys.executable, str(script), str(listener.getsockname()[1])], env=clean_environment(), cwd=ROOT)
        try:
            with listener.accept()[0] as sock, sock.makefile("rw") as first:
                assert json.loads(first.readline())["hello"] == process.pid
                _order(first, 1, "matmul", 0.2)
                said = json.loads(first.readline())
                assert (said["id"], said["restarts"], said["reply"]["ok"]) == (1, True, False)
                assert "matmul hangs" in said["reply"]["said"]
                assert first.readline() == "", "the old process's connection is closed"
            with listener.accept()[0] as sock, sock.makefile("rw") as second:
                assert json.loads(second.readline())["hello"] == process.pid, "the same process for whoever started it"
                _order(second, 2, "transport", 5.0)
                assert json.loads(second.readline())["reply"]["ok"]
                _order(second, 3, "matmul", 60.0)
                sock.shutdown(socket.SHUT_RDWR)
            assert process.wait(5) == 0
        finally:
            process.kill()
            process.wait()


def _order(file, number: int, deed: str, stuck_s: float) -> None:
    file.write(json.dumps({"id": number, "order": {"do": deed}, "stuck_s": stuck_s}) + "\n")
    file.flush()


def test_replies_and_orders_are_read_as_they_were_written():
    order = Order("reduce", sizes=(1, 2), repeats=3)
    assert Order.from_json(json.loads(json.dumps(order.to_json()))) == order
    reply = Reply(ok=False, said="x", figures={"a": 1.5}, words={"b": "c"})
    assert Reply.from_json(json.loads(json.dumps(reply.to_json()))) == reply
    with pytest.raises(ValueError, match="no order"):
        Order.from_json({"do": "dance"})


@pytest.mark.long
def test_a_probe_without_its_gpu_says_so_as_its_hello():
    """A real start by the command, on a machine without GPUs. (Quick, from a process that has torch: test_probe.)"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        argv = probe_command(sys.executable, "127.0.0.1", listener.getsockname()[1])
        env = clean_environment({DEVICE: "cuda", "SLURMTRAIN_NODE": "n1", "CUDA_VISIBLE_DEVICES": ""})
        process = subprocess.Popen(argv, env=env, cwd=ROOT)
        with listener.accept()[0] as sock, sock.makefile() as file:
            hello = json.loads(file.readline())["hello"]
        assert process.wait(10) == 0
    assert (hello["node"], hello["local"]) == ("n1", 0)
    assert "no GPU can be used on n1" in hello["problem"]
