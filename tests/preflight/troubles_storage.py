"""Troubles of shared folders, quotas, the node's own disk, software and the site's own commands."""

from __future__ import annotations

from typing import Any

from tests.preflight.row import Row

GB = 10**9
CHECKPOINT = {"need_bytes": 500 * GB, "need_files": 65}
COMMANDS = {"preflight": {"commands": {"nvme": "/usr/local/sbin/check_nvme --critical 90"}}}
WANTED = {"preflight": {"scratch_bytes": 700 * GB}}
SITE = {"paths": {"root": "/runs", "scratch": "/raid/scratch"}}


def tried(**changes: Any) -> dict[str, Any]:
    return {"seconds": 0.01, "same": True, "device": 40, "free_bytes": 800_000 * GB, "free_files": 10**9, **changes}


def failed(errno: str, error: str, at: str = "write into") -> dict[str, Any]:
    return {"error": error, "errno": errno, "at": at}


def folder(name: str = "/runs/checkpoints", **one: Any) -> dict[str, Any]:
    return {"shared": {"folders": {name: one, "/runs/events": tried()}}}


def quota(bytes_: int | None, files: int | None) -> dict[str, Any]:
    return {"quota": {"left": [{"folder": "/runs/checkpoints", "bytes": bytes_, "files": files, "where": "Lustre's quota of user 1000"}]}}


def packages(**changes: Any) -> dict[str, Any]:
    good = {"torch": "2.13.0", "mpi4py": "4.1.1", "numpy": "2.3.5", "h5py": "3.15.1", "xxhash": "3.6.0"}
    return {"packages": {name: {"version": version, "there": bool(version)} for name, version in {**good, **changes}.items()}}


def said(rc: int, words: str = "") -> dict[str, Any]:
    return {"commands": {"commands": {"nvme": {"rc": rc, "said": words}}}}


SCRATCH = {"folder": "/raid/scratch", "local_bytes": 0, **tried(free_bytes=800 * GB)}
FACTS = {
    "shared": {"folders": {"/runs/checkpoints": tried(), "/runs/events": tried()}},
    "quota": {"left": []},
    "scratch": SCRATCH,
    "software": {"code": "", "python": "/venv/bin/python", "version": "3.11.7", **packages()},
    "mpi": {"mpi4py": "4.1.1", "library": "MPICH Version: 4.3.2"},
    "commands": {"commands": {"nvme": {"rc": 0, "said": "NVME OK"}}},
}
NO_DISK = {"scratch": {"folder": "/raid/scratch", "local_bytes": 0, **failed("EACCES", "Permission denied")}}

ROWS = [
    Row("shared-folder", "read-only", folder(**failed("EROFS", "Read-only file system")), "checkpoints: cannot write into it: Read-only"),
    Row("shared-folder", "full", folder(**failed("ENOSPC", "No space left on device")), "`slurmtrain ckpt prune`"),
    Row("shared-folder", "over quota", folder(**failed("EDQUOT", "Disk quota exceeded")), "the quota is used up"),
    Row("shared-folder", "not ours", folder(**failed("EACCES", "Permission denied")), "give this user the right to write there"),
    Row("shared-folder", "not mounted", folder(**failed("ENOENT", "No such file or directory")), "is its file system mounted?"),
    Row("shared-folder", "stale", folder(**failed("ESTALE", "Stale file handle", "read from")), "cannot read from it: Stale file handle"),
    Row("shared-folder", "evicted", folder(**failed("ESHUTDOWN", "Cannot send after transport endpoint shutdown")), "Lustre evicts"),
    Row("shared-folder", "damages data", folder(**tried(same=False)), "what was read is not what was written"),
    Row("shared-slow", "a minute", folder(**tried(seconds=61.0)), "a small file took 61 s to become durable", "warn"),
    Row("shared-space", "bytes", folder(**tried(free_bytes=20 * GB)), "465.7 GiB needed, 18.6 GiB free", request=CHECKPOINT),
    Row("shared-space", "files", folder(**tried(free_files=64)), "65 files needed, 64 free", request=CHECKPOINT),
    Row("quota", "bytes", quota(20 * GB, None), "465.7 GiB needed, 18.6 GiB free (Lustre's quota of user 1000)", request=CHECKPOINT),
    Row("quota", "files", quota(None, 3), "65 files needed, 3 free (Lustre's quota of user 1000)", request=CHECKPOINT),
    Row("quota", "used up", quota(-5, 10), "1 B needed, 0 B free"),
    Row("scratch", "not writable", NO_DISK, "/raid/scratch: cannot write into it: Permission denied"),
    Row(
        "scratch-space", "the site's", {"scratch": {"free_bytes": 9 * GB}}, "free, 651.9 GiB wanted (preflight.scratch_bytes)", site=WANTED
    ),
    Row("scratch-space", "local checkpoints", {"scratch": {"free_bytes": 9 * GB}}, "(checkpoint.local)", request={"local_bytes": 750 * GB}),
    Row(
        "software",
        "no interpreter",
        {"software": {"error": "/venv/bin/python: No such file or directory"}},
        "/venv/bin/python: it cannot be run",
    ),
    Row("software", "no h5py", {"software": packages(h5py="")}, "it has no h5py: `/venv/bin/python -m pip install h5py`"),
    Row(
        "software",
        "no code",
        {"software": {"code": "No such file or directory"}},
        "/runs/code: the run's code cannot be seen",
        request={"code": "/runs/code"},
    ),
    Row("software-equal", "older", {"software": packages(torch="2.12.0")}, "torch: 2.12.0 there, 2.13.0 on most nodes"),
    Row("mpi-library", "none", {"mpi": {"error": "cannot open shared object file"}}, "mpi4py cannot load an MPI library: cannot open"),
    Row("mpi-library", "another", {"mpi": {"library": "Open MPI v5.0.8"}}, "MPI is Open MPI v5.0.8 there, MPICH Version: 4.3.2 on most"),
    Row("site-command", "warns", said(1, "NVME WARNING - 85 % used"), "nvme: NVME WARNING - 85 % used", "warn", site=COMMANDS),
    Row("site-command", "finds", said(2, "NVME CRITICAL - 97 % used"), "run it on the node: `/usr/local/sbin/check_nvme", site=COMMANDS),
    Row("site-command", "is at a loss", said(3), "nvme: exit code 3", "unknown", site=COMMANDS),
    Row("site-command", "is not there", said(127, "No such file or directory"), "No such file or directory", "unknown", site=COMMANDS),
]
