"""A checkpoint copied to another folder: every byte compared with its sum on the way, durable, seen whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from io import FileIO
from pathlib import Path

import xxhash

from slurmtrain.checkpoint.newfolder import new_folder
from slurmtrain.errors import CheckpointError, CorruptCheckpointError
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest
from slurmtrain.store.verify import cheap_problems
from slurmtrain.syscalls import SYSTEM, Syscalls, pwrite_all, write_new

THREADS = 4
"""Files copied at a time; each holds one chunk in memory."""


def copy_checkpoint(
    folder: Path,
    out: Path,
    *,
    calls: Syscalls = SYSTEM,
    advance: Callable[[int], None] = lambda _: None,
    threads: int = THREADS,
) -> Manifest:
    """Copy a checkpoint to the new folder `out`; its manifest. `advance` hears of bytes that were copied, from any thread.

    Raises UserError where `out` is taken or cannot be made, CorruptCheckpointError where a byte is not what was written, CheckpointError
    where one of the two cannot be read or written. Nothing is left then.
    """
    data, manifest = _checked(folder)
    with new_folder(out, calls=calls) as staging:
        _Copying(calls, folder, staging, manifest, advance).all_files(threads)
        write_new(calls, staging / MANIFEST_NAME, data)
    return manifest


def _checked(folder: Path) -> tuple[bytes, Manifest]:
    """The manifest, as bytes and read; names and sizes of the files are as it says."""
    path = folder / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    manifest = Manifest.from_json(data, str(path))
    if problems := cheap_problems(folder, manifest):
        raise CorruptCheckpointError(f"{folder}: {problems[0]}")
    return data, manifest


class _Copying:
    """Files on their way; the first error ends it, the others stop at their next chunk."""

    def __init__(self, calls: Syscalls, folder: Path, staging: Path, manifest: Manifest, advance: Callable[[int], None]) -> None:
        self._calls, self._folder, self._staging = calls, folder, staging
        self._manifest, self._advance = manifest, advance
        self._ended = False

    def all_files(self, threads: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            doings = [pool.submit(self._file, name) for name in self._manifest.files]
            try:
                done, _ = wait(doings, return_when=FIRST_EXCEPTION)
            finally:  # also when the program is told to end
                self._ended = True
            for doing in done:
                doing.result()

    def _file(self, name: str) -> None:
        if self._ended:
            return
        with self._open(name) as source:
            fd = self._calls.create(self._staging / name)
            try:
                if self._chunks(name, source, fd):
                    self._calls.fsync(fd)
            finally:
                self._calls.close(fd)

    def _open(self, name: str) -> FileIO:
        try:
            return open(self._folder / name, "rb", buffering=0)
        except OSError as error:
            raise CheckpointError(f"{self._folder / name}: {error.strerror or error}") from error

    def _chunks(self, name: str, source: FileIO, fd: int) -> bool:
        """Whether it came to the end."""
        size, chunk = self._manifest.files[name].size, self._manifest.chunk_bytes
        buffer = memoryview(bytearray(min(chunk, size)))
        for number, digits in enumerate(self._manifest.files[name].xxh3_64):
            at = number * chunk
            part = buffer[: min(chunk, size - at)]
            if self._read(name, source, part) < len(part) or xxhash.xxh3_64_hexdigest(part) != digits:
                raise CorruptCheckpointError(
                    f"{self._folder / name}: chunk {number} (bytes from {at}) differs from what was written: nothing was copied"
                )
            if self._ended:
                return False
            pwrite_all(self._calls, fd, part, at)
            self._calls.settle(fd, at, len(part))
            self._advance(len(part))
        return True

    def _read(self, name: str, source: FileIO, part: memoryview) -> int:
        done = 0
        try:
            while count := source.readinto(part[done:]):
                done += count
        except OSError as error:
            raise CheckpointError(f"{self._folder / name}: {error.strerror or error}: nothing was copied") from error
        return done
