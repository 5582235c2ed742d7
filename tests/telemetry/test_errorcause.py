"""The cause by an exception's type; of torch's own classes with the real ones."""

from __future__ import annotations

import errno
import os

import pytest
import torch
import torch.distributed as dist

from slurmtrain.errors import (
    CheckpointError,
    ConfigError,
    CorruptCheckpointError,
    DataError,
    LaunchError,
    NonFiniteError,
    PlacementError,
    UnreadableCheckpointError,
)
from slurmtrain.telemetry.errorcause import cause_of_error, cause_of_words


class ReplicasDifferError(Exception):
    category = "silent_corruption"


class OddError(Exception):
    category = "no such cause"


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/lustre/runs/llama")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConfigError("x"), "configuration"),
        (PlacementError("x"), "configuration"),
        (LaunchError("MPI sees 1 rank"), "configuration"),
        (NonFiniteError("loss is nan"), "numerical"),
        (FloatingPointError("x"), "numerical"),
        (MemoryError(), "out_of_memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out_of_memory"),
        (RuntimeError("CUDA error: out of memory"), "out_of_memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"), "out_of_memory"),
        (os_error(errno.ENOMEM), "out_of_memory"),
        (os_error(errno.ENOSPC), "storage"),
        (os_error(errno.EDQUOT), "storage"),
        (os_error(errno.EIO), "storage"),
        (os_error(errno.ESTALE), "storage"),
        (os_error(errno.EROFS), "storage"),
        (CheckpointError("x"), "storage"),
        (CorruptCheckpointError("x"), "storage"),
        (UnreadableCheckpointError("x"), "storage"),
        (DataError("tokens.bin is short"), "storage"),
        (os_error(errno.ECONNRESET), "network"),
        (ConnectionError("x"), "network"),
        (os_error(errno.EHOSTUNREACH), "network"),
        (dist.DistBackendError("NCCL error in: unhandled system error"), "network"),
        (dist.DistNetworkError("The client socket has timed out"), "network"),
        (RuntimeError("NCCL WARN NET/IB : Got completion with error 12"), "network"),
        (ReplicasDifferError("rank 3"), "silent_corruption"),
        (OddError("x"), "rank_crash"),
        (os_error(errno.ENOENT), "rank_crash"),
        (ValueError("No space left on device, says a message that is no system's"), "rank_crash"),
        (SystemExit(7), "rank_crash"),
        (KeyboardInterrupt(), "rank_crash"),
        (AssertionError(), "rank_crash"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{type(value).__name__} {value}",
)
def test_rows(error, cause):
    assert cause_of_error(error) == cause


def test_what_an_exception_was_raised_from_counts_where_itself_says_nothing():
    wrapped = RuntimeError("pipeline stage 1 failed")
    wrapped.__cause__ = os_error(errno.ESTALE)
    assert cause_of_error(wrapped) == "storage"
    loop = RuntimeError("a")
    loop.__cause__ = RuntimeError("b")
    loop.__cause__.__cause__ = loop
    assert cause_of_error(loop) == "rank_crash"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.", "out_of_memory"),
        ("srun: error: n2: task 3: Out Of Memory", "out_of_memory"),
        ("OSError: [Errno 122] Disk quota exceeded: '/scratch/x'", "storage"),
        ("NonFiniteError: the loss of step 7 is nan", "numerical"),
        ("torch.distributed.DistBackendError: NCCL error, ncclSystemError", "network"),
        ("IndexError: list index out of range", None),
        ("", None),
    ],
)
def test_words_where_no_type_is_to_be_had(text, cause):
    assert cause_of_words(text) == cause
