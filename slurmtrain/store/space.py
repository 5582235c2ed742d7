"""Whether there is room for a checkpoint: what the file system has free, and what quotas leave, in bytes and files.

It asks and never decides: what cannot be asked, or answers what nobody understands, is no shortage, for the write itself tells. A hard
limit alone counts; soft ones may be passed for a while.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.config.site import SiteStorage
from slurmtrain.shell import Completed, Shell
from slurmtrain.store.mounts import TABLE, Mount, mount_of
from slurmtrain.units import format_size

ASK_SECONDS = 10.0


@dataclass(frozen=True)
class Need:
    """Bytes and files that are going to be written."""

    bytes: int
    files: int = 0


@dataclass(frozen=True)
class Left:
    """What may still be written (inf: no limit), and who says so."""

    bytes: float
    files: float
    where: str


def shortage(folder: Path, need: Need, *, shell: Shell, site: SiteStorage, mounts: Path = TABLE) -> str | None:
    """One line where there is no room for `need` in `folder`; None where there is, or nobody knows. Never raises.

    Asks the file system; then the site's `quota_command`, else, with `quota = "auto"`, lfs on Lustre, mmlsquota on GPFS, quota elsewhere.
    """
    if short := full_disk(folder, need):
        return short
    for left in quotas(folder, shell, site, mounts):
        if short := short_of(folder, need, left):
            return short
    return None


def full_disk(folder: Path, need: Need) -> str | None:
    """As `shortage`, by the file system's own numbers alone."""
    try:
        return short_of(folder, need, free(folder))
    except OSError:
        return None


def free(folder: Path) -> Left:
    """What the file system has free for whoever asks. Raises OSError."""
    status = os.statvfs(folder)
    files = status.f_favail if status.f_files else math.inf  # some file systems count none
    return Left(status.f_bavail * status.f_frsize, files, "on the file system")


def short_of(folder: Path, need: Need, left: Left) -> str | None:
    """One line where what is left is less than the need."""
    if need.bytes > left.bytes:
        return f"{folder}: {format_size(need.bytes)} needed, {format_size(max(left.bytes, 0))} free ({left.where})"
    if need.files > left.files:
        return f"{folder}: {need.files} files needed, {max(int(left.files), 0)} free ({left.where})"
    return None


def quotas(folder: Path, shell: Shell, site: SiteStorage, mounts: Path = TABLE) -> Iterator[Left]:
    """What each quota leaves that applies to the folder; of one that cannot be asked, or answers what nobody understands, nothing."""
    if site.quota_command is not None:
        yield from _site_quota(folder, shell, site.quota_command)
        return
    mount = mount_of(folder, mounts) if site.quota == "auto" else None
    if mount is None:
        return
    asks = {"lustre": _lustre, "gpfs": _gpfs}.get(mount.kind, _quota_tools)
    try:
        yield from asks(folder, shell, mount)
    except (ValueError, IndexError, OSError):
        return


def _site_quota(folder: Path, shell: Shell, command: str) -> Iterator[Left]:
    try:
        argv = [word.replace("{folder}", str(folder)) for word in shlex.split(command)]
        words = _asked(shell, *argv).out.split()
        amounts = [math.inf if word == "-" else float(word) for word in words]
    except (ValueError, IndexError):
        return
    if len(amounts) == 2 and not any(map(math.isnan, amounts)):
        yield Left(amounts[0], amounts[1], f"says {argv[0]}")


def _asked(shell: Shell, *argv: str) -> Completed:
    return shell.run(argv, timeout_s=ASK_SECONDS)


def _lustre(folder: Path, shell: Shell, mount: Mount) -> Iterator[Left]:
    """`lfs quota` for the user, the folder's group, and the project that the folder belongs to.

    Its table wraps after a long name, marks what is over a limit by `*`, and puts in brackets what it could not ask of all servers.
    """
    who = [("-u", str(os.getuid()), "user"), ("-g", str(folder.stat().st_gid), "group")]
    project = _asked(shell, "lfs", "project", "-d", str(folder)).out.split()
    if project and project[0].isdigit() and int(project[0]):
        who.append(("-p", project[0], "project"))
    for flag, number, kind in who:
        answer = _asked(shell, "lfs", "quota", "-q", flag, number, str(mount.point))
        numbers = answer.out.replace("[", " ").replace("]", " ").replace("*", " ").split()
        if numbers and numbers[0].startswith("/"):
            yield _left(numbers[1:], f"Lustre's quota of {kind} {number}")


def _quota_tools(folder: Path, shell: Shell, mount: Mount) -> Iterator[Left]:
    """`quota` for the user and the folder's group; its answer counts though it ends with 1 (over some soft limit)."""
    for flag, number, kind in (("-u", os.getuid(), "user"), ("-g", folder.stat().st_gid, "group")):
        answer = _asked(shell, "quota", "-w", "-p", flag, *([] if kind == "user" else [str(number)]))
        for line in answer.out.splitlines():
            name, _, rest = line.strip().partition(" ")
            if name == mount.source:
                yield _left(rest.replace("*", " ").split(), f"quota of {kind} {number}")


def _left(numbers: list[str], where: str) -> Left:
    """From: KiB used, soft, hard limit, grace, files used, soft, hard limit, grace. Raises ValueError, IndexError."""
    used, limit, files, most = (int(numbers[i]) for i in (0, 2, 4, 6))
    return Left((limit - used) * 1024 if limit else math.inf, most - files if most else math.inf, where)


def _gpfs(folder: Path, shell: Shell, mount: Mount) -> Iterator[Left]:
    """`mmlsquota -Y` (columns by name, KiB) for user and group, and for the fileset that the folder lies in."""
    device = mount.source.removeprefix("/dev/")
    asks: list[tuple[str, ...]] = [("mmlsquota", "-Y", device)]
    for line in _asked(shell, "mmlsattr", "-L", str(folder)).out.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "fileset name" and value.strip() != "root":
            asks.append(("mmlsquota", "-Y", "-j", value.strip(), device))
    for argv in asks:
        rows = [line.split(":") for line in _asked(shell, *argv).out.splitlines() if line.startswith("mmlsquota:")]
        names = next((row for row in rows if "HEADER" in row), None)
        if names is None:
            continue
        for row in rows:
            said = dict(zip(names, row, strict=False))
            if row is not names and said.get("filesystemName", device) == device:
                yield _gpfs_left(said)


def _gpfs_left(said: dict[str, str]) -> Left:
    used, limit, files, most = (int(said.get(key, "0") or 0) for key in ("blockUsage", "blockLimit", "filesUsage", "filesLimit"))
    where = f"GPFS's quota of {said.get('quotaType', '')} {said.get('name', '')}".rstrip()
    return Left((limit - used) * 1024 if limit else math.inf, most - files if most else math.inf, where)
