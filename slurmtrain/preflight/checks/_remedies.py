"""What to do about the errors of a folder, by the name of the error (errno(3))."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_REMEDIES: Mapping[str, str] = {
    "EROFS": "the file system is mounted read-only, often after an error of its disk: see dmesg, mount it anew",
    "ENOSPC": "make room there (`df`, `df -i`), or `slurmtrain ckpt prune`",
    "EDQUOT": "the quota is used up: make room, or ask for more",
    "EACCES": "give this user the right to write there (`ls -ld`)",
    "EPERM": "give this user the right to write there (`ls -ld`, `lsattr -d`)",
    "ENOENT": "it is not there on this node: is its file system mounted?",
    "ENOTDIR": "a file stands where a folder should be",
    "EEXIST": "a file stands where a folder should be",
    "ESTALE": "the node's handle is of a file system that was replaced: mount it anew",
    "ENOTCONN": "the file system's client has lost its server: mount it anew",
    "ESHUTDOWN": "the file system's client was shut down (Lustre evicts a client that does not answer): mount it anew",
    "EIO": "its disk or server fails: see dmesg",
}


def advice(error: Mapping[str, Any]) -> str:
    return _REMEDIES.get(error["errno"], "see dmesg and the log of the file system's client")


def said(error: Mapping[str, Any]) -> str:
    return f"cannot {error['at']} it: {error['error']}"
