"""The configuration files of a cluster, as text: pure functions of its record and folder.

Each setting was tried on Slurm 22.05 and 24.11; the reason stands where it is not plain.
"""

from __future__ import annotations

from .ports import BLOCK, FIRST
from .spec import Folder, Record

FIRST_WITH_BLOCKS = (23, 11)
REAL_MEMORY_MB = 16000

FAST = {
    "SlurmdTimeout": "10",
    "KillWait": "5",
    "MessageTimeout": "5",  # a dead node is noticed 15-19 s after its death, with the default 10 it takes 25-29 s (tried)
    "MinJobAge": "10",
    "MaxArraySize": "11",
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=2,sched_min_interval=0",
}
DEFAULT = {"SlurmdTimeout": "300", "KillWait": "30", "MinJobAge": "300"}
CRED_EXPIRE_S = {"fast": 5, "default": 120}
JOB_IDS = 10_000
"""Job ids of a cluster before the next one's begin: MPICH names its segments in /dev/shm by job and step, and clusters share them."""


def slurm_conf(record: Record, folder: Folder) -> str:
    """slurm.conf: one controller, N slurmd on 127.0.0.1 with a port each."""
    spec, ports = record.spec, record.ports
    settings = {
        "ClusterName": "devcluster",
        "SlurmctldHost": f"{record.host}(127.0.0.1)",
        "SlurmctldPort": str(ports.slurmctld),
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder.munge_socket},cred_expire={CRED_EXPIRE_S[spec.timings]}",
        "StateSaveLocation": str(folder.state / "slurmctld"),
        "SlurmctldPidFile": str(folder.run / "slurmctld-own.pid"),
        "SlurmctldLogFile": str(folder.log_file("slurmctld")),
        "SlurmdPidFile": f"{folder.node('%n')}/slurmd-own.pid",
        "SlurmdLogFile": f"{folder.node('%n')}/slurmd.log",
        "SlurmdSpoolDir": f"{folder.node('%n')}/spool",
        "SlurmdParameters": "config_overrides",  # fewer real cores than CPUs=: nodes would go INVAL
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": str(REAL_MEMORY_MB // spec.cpus),
        "GresTypes": "gpu",
        "FirstJobId": str(1 + (ports.base - FIRST) // BLOCK * JOB_IDS),
        "MpiDefault": "pmi2",  # PMIx fails where several slurmd share a host
        "TopologyPlugin": f"topology/{spec.topology}",
        "ReturnToService": "2",
        "BatchStartTimeout": "60",  # the machine may be busy
        "KillOnBadExit": "0",
        "WaitTime": "0",
        **(FAST if spec.timings == "fast" else DEFAULT),
        **_accounting(record, folder),
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    return "\n".join([*lines, *_nodes(record), *_partitions(record)]) + "\n"


def _accounting(record: Record, folder: Folder) -> dict[str, str]:
    if not record.spec.accounting:
        return {"AccountingStorageType": "accounting_storage/none", "JobAcctGatherType": "jobacct_gather/none"}
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": str(record.ports.slurmdbd),
        "AccountingStoragePass": str(folder.munge_socket),  # with slurmdbd: which munged, not a password
        "AccountingStorageEnforce": "limits",
        "AccountingStorageTRES": "gres/gpu",
        "AccountingStoreFlags": "job_comment",
        "JobAcctGatherType": "jobacct_gather/linux",
    }


def _nodes(record: Record) -> list[str]:
    spec, first = record.spec, record.ports.first_slurmd
    gres = f" Gres=gpu:{spec.gpus}" if spec.gpus else ""
    return [
        f"NodeName={name} NodeHostname={record.host} NodeAddr=127.0.0.1 Port={first + i}"
        f" CPUs={spec.cpus} RealMemory={REAL_MEMORY_MB}{gres} State=UNKNOWN"
        for i, name in enumerate(spec.node_names)
    ]


def _partitions(record: Record) -> list[str]:
    every = _range(1, record.spec.nodes)
    return [
        f"PartitionName=main Nodes={every} Default=YES MaxTime=INFINITE State=UP",
        f"PartitionName=debug Nodes={every} Default=NO DefaultTime=5 MaxTime=30 State=UP",
    ]


def _range(first: int, last: int) -> str:
    return f"n{first}" if first == last else f"n[{first}-{last}]"


def topology_conf(record: Record) -> str:
    """topology.conf: two leaf switches under a spine, or blocks of two nodes."""
    nodes = record.spec.nodes
    if record.spec.topology == "block":
        blocks = [f"BlockName=b{i // 2 + 1} Nodes={_range(i + 1, i + 2)}" for i in range(0, nodes, 2)]
        return "\n".join([*blocks, "BlockSizes=2"]) + "\n"
    half = (nodes + 1) // 2
    leaves = [f"SwitchName=leaf1 Nodes={_range(1, half)}"]
    if half < nodes:
        leaves.append(f"SwitchName=leaf2 Nodes={_range(half + 1, nodes)}")
    return "\n".join([*leaves, f"SwitchName=spine Switches={'leaf[1-2]' if len(leaves) == 2 else 'leaf1'}"]) + "\n"


def gres_conf(record: Record, folder: Folder) -> str:
    """gres.conf: Slurm wants character devices behind its GPUs."""
    gpus = record.spec.gpus
    if not gpus:
        return ""
    files = f"{folder.dev}/gpu0" if gpus == 1 else f"{folder.dev}/gpu[0-{gpus - 1}]"
    return f"Name=gpu Count={gpus} File={files}\n"


def cgroup_conf(record: Record) -> str:
    """cgroup.conf: nothing here uses cgroups, but slurmd loads a plugin, and ends where the one it detects does not work (containers).

    22.05 cannot be told to go without; its plugin for v1 does nothing until it is used.
    """
    return f"CgroupPlugin={'disabled' if record.slurm >= (23, 2) else 'cgroup/v1'}\n"


def slurmdbd_conf(record: Record, folder: Folder, password: str) -> str:
    """slurmdbd.conf: the database listens on 127.0.0.1 alone."""
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder.munge_socket}",
        "DbdHost": record.host,
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(record.ports.slurmdbd),
        "SlurmUser": "root",
        "PidFile": str(folder.run / "slurmdbd-own.pid"),
        "LogFile": str(folder.log_file("slurmdbd")),
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StoragePort": str(record.ports.database),
        "StorageUser": "slurm",
        "StoragePass": password,
        "StorageLoc": "slurm_acct_db",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def files(record: Record, folder: Folder) -> dict[str, str]:
    """File name below etc/ -> text, slurmdbd.conf left out (it holds a secret)."""
    every = {
        "slurm.conf": slurm_conf(record, folder),
        "gres.conf": gres_conf(record, folder),
        "cgroup.conf": cgroup_conf(record),
        "topology.conf": topology_conf(record),
    }
    return {name: text for name, text in every.items() if text}
