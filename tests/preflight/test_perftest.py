"""What ib_write_bw prints, as people have shown it."""

from __future__ import annotations

import pytest

from slurmtrain.preflight.perftest import average_gbps, write_bw_argv

HEAD = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 1\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 Mtu             : 4096[B]
 Link type       : Ethernet
 GID index       : 3
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0108 PSN 0x63ad7d RKey 0x17eedf VAddr 0x007f760c947000
 remote address: LID 0000 QPN 0x0076 PSN 0xf3810c RKey 0x201600 VAddr 0x007fbb4c981000
---------------------------------------------------------------------------------------
"""
GBITS = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
ONE = " 65536      5000             51.05              51.04              0.097356\n"
BY_TIME = """\
Conflicting CPU frequency values detected: 1500.000000 != 3300.016000. CPU Frequency is not max.
 65536      560845           0.00               98.02                0.186950
"""
"""With -D there is no peak; a line about the CPU comes between."""
MANY = """\
 2          5000           0.042350            0.042185            2.636533
 1048576    50000          394.28             393.98             0.046968
 8388608    5000           394.72             394.61             0.005880
"""
MBYTES = """\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      664644           0.00               11728.47             0.187655
"""


@pytest.mark.parametrize(
    ("out", "gbps"),
    [
        (HEAD + GBITS + ONE, 51.04),
        (HEAD + GBITS + BY_TIME, 98.02),
        (HEAD + GBITS + MANY, 394.61),
        (HEAD + MBYTES, None),
        (HEAD + GBITS, None),
        (HEAD, None),
        ("Couldn't connect to n1:18515\nUnable to init the socket connection\n", None),
        ("", None),
    ],
)
def test_the_average_of_the_largest_message(out, gbps):
    assert average_gbps(out) == gbps


def test_the_client_names_the_server_last_and_both_the_same_test():
    server, client = write_bw_argv("mlx5_0", 4711), write_bw_argv("mlx5_0", 4711, server="10.0.0.1")
    assert client == [*server, "10.0.0.1"]
    assert server[:5] == ["ib_write_bw", "-d", "mlx5_0", "-p", "4711"]
    assert "--report_gbits" in server


def test_the_gid_is_that_of_nccl():
    assert write_bw_argv("mlx5_0", 1, environ={"NCCL_IB_GID_INDEX": "3"})[-2:] == ["-x", "3"]
    assert "-x" not in write_bw_argv("mlx5_0", 1, environ={})


def test_an_ipv6_server_is_asked_by_ipv6():
    assert write_bw_argv("mlx5_0", 1, server="fd00::1")[-2:] == ["--ipv6-addr", "fd00::1"]
