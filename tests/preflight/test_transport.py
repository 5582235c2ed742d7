"""Words of NCCL, as people have shown them in public issues, and what was used. Host names are shortened."""

from __future__ import annotations

import pytest

from slurmtrain.preflight.transport import WORDS, in_order, transports

IB = """\
n1:4197:4267 [0] NCCL INFO P2P plugin IBext_v8
n1:4197:4267 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [2]mlx5_4:1/IB/SHARP [3]mlx5_5:1/IB/SHARP \
[4]mlx5_2:1/RoCE [RO]; OOB ib0.0065:10.1.32.3<0>
n1:4197:4267 [0] NCCL INFO Using network IBext_v8
n1:4197:4267 [0] NCCL INFO comm 0x5594b5eb16a0 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
"""
"""NVIDIA/nccl issue 1737: four IB ports and a RoCE port for management; it hung before there was a channel."""
IB_CHANNELS = """\
n2:41626:45224 [6] NCCL INFO Channel 00 : 15[b2000] -> 6[b1000] [receive] via NET/IB/0/GDRDMA
n2:41626:45222 [4] NCCL INFO Channel 02 : 4[88000] -> 5[89000] via P2P/direct pointer
"""
"""NVIDIA/nccl issue 429."""
ROCE = """\
n4:460770:460842 [0] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB enp220s0np0:11.1.128.136<0>
n4:460770:460842 [0] NCCL INFO Using non-device net plugin version 0
n4:460770:460842 [0] NCCL INFO Using network IB
"""
"""NVIDIA/nccl-tests issue 185, two DGX H100."""
LIBFABRIC = "n1:6831:6840 [0] NCCL INFO NET/OFI Selected Provider is {} (found 16 nics)\n"
EFA_CHANNEL = "n2:14630:14695 [1] NCCL INFO Channel 05/0 : 0[0] -> 1[1] [receive] via NET/AWS Libfabric/1/GDRDMA\n"
"""NVIDIA/nccl issue 1597, p5en."""
EFA_PLAIN = "n1:9738:9797 [0] NCCL INFO Channel 01 : 9[101d0] -> 0[101c0] [receive] via NET/AWS Libfabric/0\n"
"""aws/aws-ofi-nccl issue 64, p4d: slow, for it is without GPUDirect."""
SOCKET = """\
n1:7990:8056 [0] NCCL INFO Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so
n1:7990:8056 [0] NCCL INFO P2P plugin IBext
n1:7990:8056 [0] NCCL INFO NET/IB : No device found.
n1:7990:8056 [0] NCCL INFO NET/Socket : Using [0]eno3:10.12.3.162<0>
n1:7990:8056 [0] NCCL INFO Using network Socket
"""
"""pytorch/pytorch issue 124380."""
SOCKET_CHANNELS = """\
n1:2771:2801 [0] NCCL INFO Ring 00 : 1 -> 0 [receive] via NET/Socket/0
n1:2771:2801 [0] NCCL INFO Ring 00 : 0 -> 1 [send] via NET/Socket/0
"""
"""NCCL 2.4.8."""
NO_NVLS = """\
n1:33347:33367 [7] NCCL INFO Channel 15/0 : 7[7] -> 4[4] via P2P/direct pointer
n1:33347:33366 [6] NCCL INFO 16 coll channels, 0 nvls channels, 16 p2p channels, 16 p2p channels per peer
"""
"""NVIDIA/nccl issue 892, H800."""
NVLS = """\
n1:422771:422788 [2] NCCL INFO Channel 15/0 : 2[2] -> 1[1] via P2P/direct pointer
n1:422771:422786 [0] NCCL INFO Connected NVLS tree
n1:422771:422786 [0] NCCL INFO 16 coll channels, 16 nvls channels, 16 p2p channels, 16 p2p channels per peer
"""
"""A node of eight whose switch reduces: a log of NCCL 2.19 in a public repository."""
NOT_MULTICAST = "n1:16899:16949 [0] NCCL INFO NVLS multicast support is not available on dev 0\n"
"""NVIDIA/nccl-tests issue 188."""
SHARED_MEMORY = "n1:1477:2150 [1] NCCL INFO Channel 00 : 1[1a000] -> 2[af000] via direct shared memory\n"
PXN = "n1:1:2 [0] NCCL INFO Channel 03/1 : 0[0] -> 9[1] [send] via NET/IBext_v8/1(1)/GDRDMA(PCI)/Shared\n"
"""Through the NIC of another GPU; the form of NCCL 2.31 (src/transport/net.cc)."""
MERGED = """\
n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [2]mlx5_2:1/IB [RO]; OOB eth0:10.0.0.1<0>
n1:1:2 [0] NCCL INFO NET/IB : Made virtual device [3] name=mlx5_0+mlx5_1 speed=800000 ndevs=2
n1:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/NCCL RDMA Plugin v10/3
"""
ONE_NODE = IB.replace("nNodes 2", "nNodes 1") + NVLS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        (IB, "IB RoCE"),
        (IB + IB_CHANNELS, "IB GPUDirect P2P"),
        (IB + IB_CHANNELS.replace("/IB/0", "/IB/4"), "RoCE GPUDirect P2P"),
        (IB_CHANNELS, "IB GPUDirect P2P"),
        (ROCE + IB_CHANNELS.replace("/GDRDMA", ""), "RoCE P2P"),
        (ROCE.replace("Using network", "nNodes 2\nUsing network"), "RoCE"),
        (LIBFABRIC.format("efa") + EFA_CHANNEL, "EFA GPUDirect"),
        (LIBFABRIC.format("efa") + EFA_PLAIN, "EFA"),
        (LIBFABRIC.format("tcp;ofi_rxm") + EFA_PLAIN, "Socket"),
        (LIBFABRIC.format("tcp;ofi_rxm") + EFA_CHANNEL, "Socket"),
        (LIBFABRIC.format("cxi") + EFA_CHANNEL, "OFI GPUDirect"),
        (SOCKET + "rank 0 nRanks 4 nNodes 2\n", "Socket"),
        (SOCKET_CHANNELS, "Socket"),
        (IB + IB_CHANNELS + SOCKET_CHANNELS, "IB Socket GPUDirect P2P"),
        (NO_NVLS, "P2P"),
        (NVLS, "NVLS P2P"),
        (NOT_MULTICAST, ""),
        (SHARED_MEMORY, "SHM"),
        (IB + PXN, "IB GPUDirect"),
        (MERGED, "RoCE"),
        (ONE_NODE, "NVLS P2P"),
    ],
)
def test_what_was_used(text, words):
    assert " ".join(transports(text)) == words


def test_words_are_told_in_one_order():
    assert in_order(reversed(WORDS)) == WORDS
