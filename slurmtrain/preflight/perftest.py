"""ib_write_bw of perftest: its options, and what it prints. Pure.

One side waits as the server, the other connects and writes into its memory: the rate is that from the client's NIC to the server's. Large
messages, and several queue pairs: with one a NIC of 400 Gbit/s is often not filled (linux-rdma/perftest issues 252, 318).
"""

from __future__ import annotations

from collections.abc import Mapping

PROGRAM = "ib_write_bw"
MESSAGE_BYTES = 1 << 20
QUEUE_PAIRS = 4
SECONDS = 2
_AVERAGE = "BW average[Gb/sec]"


def write_bw_argv(nic: str, port: int, *, server: str = "", environ: Mapping[str, str] | None = None) -> list[str]:
    """The command of the server, or with the server's address that of the client. NCCL_IB_GID_INDEX counts here too, as for NCCL."""
    gid = (environ or {}).get("NCCL_IB_GID_INDEX", "")
    size = ["-s", str(MESSAGE_BYTES), "-q", str(QUEUE_PAIRS), "-D", str(SECONDS)]
    family = ["--ipv6-addr"] if ":" in server else []
    return [
        PROGRAM,
        "-d",
        nic,
        "-p",
        str(port),
        *size,
        "-F",
        "--report_gbits",
        *(["-x", gid] if gid.isdigit() else []),
        *family,
        *([server] if server else []),
    ]


def average_gbps(out: str) -> float | None:
    """Average rate in Gbit/s of the largest message; None where the output has none (it failed, or was in other units).

    Lines between the header and the figures (of CPU frequencies) are passed over; a peak of 0.00 is that of a run by time (-D).
    """
    found: tuple[int, float] | None = None
    header = False
    for line in out.splitlines():
        header = header or _AVERAGE in line
        fields = line.split()
        if header and len(fields) >= 4 and fields[0].isdigit() and fields[1].isdigit():
            rate = _number(fields[3])
            if rate is not None and (found is None or int(fields[0]) >= found[0]):
                found = int(fields[0]), rate
    return found[1] if found else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
