"""Real probes under a real conductor, over the loopback and gloo."""

from __future__ import annotations

import os
import threading

import psutil
import pytest

from slurmtrain.preflight.probing import Order
from tests.preflight.probes_conformance import A, B, C, ProbesConformance
from tests.runtime.probe_stage import ProbeStage

RECORDED = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    5000             92.62              {rate}              0.011041
"""
"""Of linux-rdma/perftest on two BlueField-3; the rate is the shim's."""


@pytest.fixture(scope="module")
def shims(tmp_path_factory):
    """An ib_write_bw that refuses as long as its server is not there, as the real one does: the server makes a file named by the port."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "ib_write_bw"
    program.write_text(f"""#!/bin/sh
echo "$@" >> {folder}/log
port=$4
for last; do :; done
case "$*" in *"-d bad"*) sleep 0.1; echo "Unable to open the device" >&2; exit 1;; esac
if [ "$last" = 127.0.0.1 ]; then
  [ -e {folder}/$port ] || {{ echo "Couldn't connect to $last:$port" >&2; exit 1; }}
  rm {folder}/$port
  printf '%s' '{RECORDED.format(rate="92.60")}'
else
  sleep 0.1; touch {folder}/$port
  while [ -e {folder}/$port ]; do sleep 0.02; done
fi
""")
    program.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def stage(tmp_path_factory, shims):
    made = ProbeStage(tmp_path_factory.mktemp("probes"), ("n1", "n2", "n3"), {"PATH": f"{shims}:{os.environ['PATH']}"})
    try:
        assert made.probes.wait([A, B, C], 240.0) == (A, B, C)
        yield made
    finally:
        seconds = made.close()
    assert seconds < 5, "probes leave when the conductor is gone"


class TestProbes(ProbesConformance):
    """See ProbesConformance."""


@pytest.mark.parametrize(
    "order", [Order("storage", bytes=1, folder="/nothing"), Order("reduce"), Order("matmul", sizes=(1 << 24,), repeats=1)]
)
def test_a_failure_is_a_reply_with_one_line(stage, order):
    """A folder that is not there, what one alone cannot do, more memory than there is."""
    reply = stage.probes.each([B], order, 30.0)[B]
    assert not reply.ok
    assert reply.said.startswith(order.do)
    assert "\n" not in reply.said


@pytest.mark.parametrize("groups", [30, pytest.param(200, marks=pytest.mark.long)])
def test_nothing_is_left_of_many_groups(stage, groups):
    """Files, threads and memory of the first's process; torch holds on to some at the first groups."""
    order = Order("reduce", sizes=(64,), repeats=1)
    process = psutil.Process(stage.pid(A))
    seen = []
    for turn in range(groups):
        [replies] = stage.probes.groups([(A, B)], order, 30.0)
        assert all(reply.ok for reply in replies.values()), (turn, replies)
        if turn in {14, groups - 1}:
            seen.append((process.num_fds(), process.num_threads(), process.memory_info().rss))
    (files, threads, memory), (later_files, later_threads, later_memory) = seen
    assert later_files <= files + 2
    assert later_threads <= threads + 1
    assert later_memory < memory + (16 << 20)


def test_who_stops_in_the_middle_of_messages_does_not_keep_the_others(stage):
    """After the roll call it is gloo's own time-out that ends what hangs; all the rest of the order's time is spent on messages."""
    order = Order("reduce", sizes=(1 << 16,), repeats=1_000_000)
    stopper = threading.Timer(0.5, stage.hang, [B])
    stopper.start()
    [replies] = stage.probes.groups([(A, B, C)], order, 4.0)
    assert replies[B].said == "no answer in 4 s"
    assert all(reply.said.startswith("reduce: ") for member, reply in replies.items() if member != B), replies
    [replies] = stage.probes.groups([(A, C)], Order("reduce", sizes=(64,), repeats=1), 30.0)
    assert all(reply.ok for reply in replies.values()), replies
    stage.resume(B)
    assert stage.probes.wait([A, B, C], 60.0) == (A, B, C)


def test_each_nic_is_measured_both_ways_by_perftest(stage, shims):
    [replies] = stage.probes.groups([(A, B)], Order("nic", nics=("mlx5_0", "mlx5_1")), 30.0)
    for reply in replies.values():
        assert reply.ok, reply.said
        assert reply.figures == {"mlx5_0.write_gbps": 92.6, "mlx5_1.write_gbps": 92.6}
    calls = (shims / "log").read_text().splitlines()
    assert len([call for call in calls if call.endswith("127.0.0.1") and "-d mlx5_1" in call]) >= 2


def test_a_nic_that_gives_no_rate_is_named(stage):
    [replies] = stage.probes.groups([(A, B)], Order("nic", nics=("bad",)), 30.0)
    assert not any(reply.ok for reply in replies.values())
    assert all("bad: ib_write_bw ended with 1: Unable to open the device" in reply.said for reply in replies.values())


def test_without_infiniband_there_is_nothing_to_measure(stage):
    [replies] = stage.probes.groups([(A, B)], Order("nic"), 30.0)
    assert all(reply.ok and "no NIC" in reply.words["skipped"] for reply in replies.values()), replies


def test_on_cpus_it_is_gloo_that_sends(stage):
    stage.probes.groups([(A, B)], Order("reduce", sizes=(64,), repeats=1), 30.0)
    assert stage.probes.each([A], Order("transport"), 10.0)[A].words == {"transport": "gloo"}
