"""The cause of a rank's end from its exception: by type and error number; by words only where types say nothing. Pure; loads no torch.

| exception, or one that it was raised from | cause |
|---|---|
| it has a `category` of its own | that |
| UserError, LaunchError | configuration |
| NonFiniteError, FloatingPointError | numerical |
| MemoryError, OSError ENOMEM; torch.OutOfMemoryError | out_of_memory |
| CheckpointError, DataError; OSError ENOSPC EDQUOT EIO ESTALE EROFS ENODEV ENXIO | storage |
| ConnectionError; OSError ECONNRESET ETIMEDOUT EHOSTUNREACH ...; torch's DistBackendError, DistNetworkError, DistStoreError | network |
| RuntimeError, torch.AcceleratorError: by their words | below |
| any other | rank_crash |
"""

from __future__ import annotations

import errno
import re

from slurmtrain.errors import CheckpointError, DataError, LaunchError, NonFiniteError, UserError
from slurmtrain.telemetry.causes import CAUSES, Cause

_BY_CLASS: tuple[tuple[type[BaseException], Cause], ...] = (
    (UserError, "configuration"),
    (LaunchError, "configuration"),
    (NonFiniteError, "numerical"),
    (FloatingPointError, "numerical"),
    (MemoryError, "out_of_memory"),
    (CheckpointError, "storage"),
    (DataError, "storage"),
    (ConnectionError, "network"),
)
_BY_NAME: dict[str, Cause] = {
    "OutOfMemoryError": "out_of_memory",
    "DistBackendError": "network",
    "DistNetworkError": "network",
    "DistStoreError": "network",
}
"""Of torch's classes, which cannot be named here without loading it."""
_BY_NUMBER: dict[int, Cause] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS, errno.ENODEV, errno.ENXIO), "storage"),
    errno.ENOMEM: "out_of_memory",
    **dict.fromkeys(
        (errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN,
         errno.EPIPE, errno.ENOTCONN),
        "network",
    ),
}  # fmt: skip
_WORDS: tuple[tuple[re.Pattern[str], Cause], ...] = (
    (
        re.compile(
            r"\bOutOfMemoryError\b|\bMemoryError\b|(?:CUDA|HIP)(?: error:)? out of memory|DefaultCPUAllocator: (?:can't|not enough)"
            r"|CUBLAS_STATUS_ALLOC_FAILED|cannot allocate memory|\bOUT_OF_MEMORY\b|\boom[_-]kill|OOM[ -]Killed|Out Of Memory",
            re.IGNORECASE,
        ),
        "out_of_memory",
    ),
    (
        re.compile(
            r"No space left on device|Disk quota exceeded|Stale (?:NFS )?file handle|Input/output error|Read-only file system"
            r"|\bErrno (?:28|122|5|116|30)\b|\b(?:Checkpoint|CorruptCheckpoint|UnreadableCheckpoint|Data)Error\b"
        ),
        "storage",
    ),
    (re.compile(r"\bNonFiniteError\b|\bFloatingPointError\b"), "numerical"),
    (
        re.compile(
            r"ncclSystemError|ncclRemoteError|ncclInternalError|NET/IB|\bibv_\w+|IBV_WC_\w+|\bDist(?:Backend|Network|Store)Error\b"
            r"|Connection (?:reset|refused|timed out|closed)|No route to host|Network is unreachable|[Bb]roken pipe|\bgloo\b.*timed out"
        ),
        "network",
    ),
)
"""glibc's, Linux', Slurm's, torch's and NCCL's own; the order matters (NCCL's words appear in errors of memory, too)."""


def cause_of_error(error: BaseException) -> Cause:
    """The table above, of the exception and then of those it was raised from; the first that says something counts.

    >>> cause_of_error(OSError(28, "No space left on device")), cause_of_error(ValueError("token 9"))
    ('storage', 'rank_crash')
    """
    for one in chain_of(error):
        if cause := _of_one(one):
            return cause
    return "rank_crash"


def chain_of(error: BaseException) -> list[BaseException]:
    """The exception and those it was raised from (pipeline schedules wrap what gloo says)."""
    found = [error]
    while (cause := found[-1].__cause__) is not None and cause not in found:
        found.append(cause)
    return found


def _of_one(error: BaseException) -> Cause | None:
    if own := next((cause for cause in CAUSES if cause == getattr(error, "category", None)), None):
        return own
    if by_class := next((cause for kind, cause in _BY_CLASS if isinstance(error, kind)), None):
        return by_class
    if isinstance(error, OSError):
        return _BY_NUMBER.get(error.errno or 0)
    for kind in type(error).__mro__:
        if kind.__module__.partition(".")[0] == "torch" and (cause := _BY_NAME.get(kind.__name__)):
            return cause
    return cause_of_words(str(error)) if isinstance(error, RuntimeError) else None


def cause_of_words(text: str) -> Cause | None:
    """What words alone tell, where no type is to be had: a program of other make, an old record, Slurm's lines. None: nothing.

    >>> cause_of_words("RuntimeError: CUDA error: out of memory"), cause_of_words("slurmstepd: error: Detected 1 oom_kill event")
    ('out_of_memory', 'out_of_memory')
    >>> cause_of_words("ValueError: token 9 is outside the vocabulary")
    """
    return next((cause for words, cause in _WORDS if words.search(text)), None)
