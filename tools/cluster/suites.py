"""Another Debian's Slurm beside this machine's: its system in a folder of the cache, its daemons and clients under chroot.

`install --suite S` makes the system once (debootstrap). A cluster that uses it gets a private view of it under /run: the cached
system with this machine's /proc, /sys, /dev and everything outside the operating system (/home, /root, /tmp, /opt ...) bound in,
so that every path of repository, virtual environment and cluster is the same inside. Mounts never lie in a folder that is deleted
recursively; the cached system holds none once a cluster is down.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .packages import PLUGINS, SEARCH, apt_install, missing_packages, no_daemon_starts
from .spec import DevclusterError, Folder

_COMMON = [
    "libffi8",
    "libsqlite3-0",
    "libbz2-1.0",
    "liblzma5",
    "libncursesw6",
    "zlib1g",
    "libexpat1",
    "libuuid1",
    "libstdc++6",
    "procps",
    "hostname",
]
LIBRARIES = {
    "bookworm": [*_COMMON, "libssl3", "libreadline8"],
    "trixie": [*_COMMON, "libssl3t64", "libreadline8t64"],
}
"""What this machine's Python and its wheels link against."""
SYSTEM = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "var", "boot", "run", "proc", "sys", "dev", "lost+found"}
ACCOUNTS = ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf")
MARK = "etc/devcluster-suite"
VIEWS = "/run/slurmtrain-devcluster"
CLIENTS = [
    "sacct",
    "sacctmgr",
    "salloc",
    "sattach",
    "sbatch",
    "sbcast",
    "scancel",
    "scontrol",
    "sdiag",
    "sinfo",
    "sprio",
    "squeue",
    "sreport",
    "srun",
    "sshare",
    "sstat",
]

WRAPPER = """#!/bin/sh
# The suite's client, from outside or inside its system.
name=${{0##*/}}
[ -e /{mark} ] && exec "/usr/bin/$name" "$@"
exec {chroot} {view} /usr/bin/env -C "$PWD" "/usr/bin/$name" "$@"
"""


def cached(suite: str, environ: Mapping[str, str]) -> Path:
    """Where the suite's system lies."""
    home = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "/root"), ".cache"))
    return Path(home, "slurmtrain/suites", suite)


def search_path(system: Path) -> str:
    """PATH of the suite's programs, seen from outside."""
    return ":".join(str(system / place.lstrip("/")) for place in SEARCH.split(":"))


def install_suite(suite: str, *, accounting: bool, environ: Mapping[str, str]) -> str:
    """Make the suite's system, or add to it what is missing; the line that says what was done."""
    system = cached(suite, environ)
    if system.is_dir() and not missing_packages(accounting=accounting, search=search_path(system)):
        return f"{suite} is there: {system}"
    if os.geteuid() != 0:
        raise DevclusterError(f"making {suite} in {system} needs root")
    if not system.is_dir():
        _debootstrap(suite, system)
    gone = missing_packages(accounting=accounting, search=search_path(system))
    with no_daemon_starts(system / "usr/sbin/policy-rc.d"):
        apt_install(gone or [PLUGINS], lambda arguments: _run(["chroot", str(system), "apt-get", "-q", *arguments]))
    return f"installed in {system}: {' '.join(gone)}"


def _debootstrap(suite: str, system: Path) -> None:
    if shutil.which("debootstrap", path=SEARCH) is None:
        with no_daemon_starts():
            apt_install(["debootstrap"], lambda arguments: _run(["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *arguments]))
    made = system.with_name(f"{suite}.new")
    made.parent.mkdir(parents=True, exist_ok=True)
    if made.exists():
        remove_tree(made)
    if code := _run(["debootstrap", "--variant=minbase", f"--include={','.join(LIBRARIES[suite])}", suite, str(made)]):
        raise DevclusterError(f"debootstrap {suite} ended with code {code}: see its output above and {made}/debootstrap/debootstrap.log")
    (made / MARK).touch()
    made.rename(system)


def _run(argv: Sequence[str]) -> int:
    return subprocess.run(argv, env={**os.environ, "PATH": SEARCH, "DEBIAN_FRONTEND": "noninteractive"}, stdout=2, check=False).returncode


def view(folder: Folder) -> Path:
    """Where the cluster's processes have their root."""
    return Path(f"{VIEWS}-{hashlib.sha256(os.fsencode(folder.root)).hexdigest()[:12]}")


def binds(top_level: Iterable[str], pythons: Iterable[str]) -> list[str]:
    """What of this machine is bound into the view, in order: names relative to `/`.

    `pythons` are names in /usr/bin; a virtual environment may have been made from one of them.
    """
    names = ["proc", "sys", "dev", *sorted(set(top_level) - SYSTEM), "usr/local", *ACCOUNTS]
    for python in sorted(pythons):
        if re.fullmatch(r"python3(\.\d+)?", python):
            names += [f"usr/bin/{python}", f"usr/lib/{python}"]
    return names


def mount(folder: Folder, system: Path) -> Path:
    """Make the cluster's view of the system; raises DevclusterError when this machine does not let us mount."""
    root = view(folder)
    if mounts_in(root):
        return root
    root.mkdir(parents=True, exist_ok=True)
    _mount("--bind", str(system), str(root))
    _mount("--make-rprivate", str(root))  # else what is mounted below would appear in the cached system too
    top_level = [entry.name for entry in Path("/").iterdir() if entry.is_dir() and not entry.is_symlink()]
    for name in binds(top_level, (path.name for path in Path("/usr/bin").glob("python3*"))):
        source, target = Path("/", name), root / name
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif source.is_file():
            target.touch()
        else:
            continue
        _mount("--rbind", str(source), str(target))
        _mount("--make-rprivate", str(target))  # else unmounting here would unmount this machine's own
    return root


def _mount(*arguments: str) -> None:
    said = subprocess.run(["mount", *arguments], env={"PATH": SEARCH}, capture_output=True, text=True, check=False)
    if said.returncode:
        raise DevclusterError(f"mount {' '.join(arguments)}: {said.stderr.strip()} (a suite needs the right to mount)")


def unmount(folder: Folder) -> None:
    """Take the view away; processes of others that still look at it (a shell) keep theirs until they end."""
    root = view(folder)
    for how in (["-R"], ["-R", "-l"]):
        if mounts_in(root):
            subprocess.run(["umount", *how, str(root)], env={"PATH": SEARCH}, capture_output=True, check=False)
    if mounts_in(root):
        raise DevclusterError(f"{root} could not be unmounted: `umount -R -l {root}`")
    if root.is_dir():
        root.rmdir()


def mounts_in(folder: Path) -> list[str]:
    """Mount points at or below a folder, as the kernel lists them (a bind mount of the same disk is one, too)."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for place in mounts if place == str(folder) or place.startswith(f"{folder}/")]


def remove_tree(folder: Path) -> None:
    """Delete a folder recursively, but never through a mount."""
    if inside := mounts_in(folder):
        raise DevclusterError(f"{folder} is not deleted, something is mounted there: `umount {' '.join(reversed(inside))}`")
    shutil.rmtree(folder)


def write_wrappers(folder: Folder) -> None:
    """The suite's client commands, for PATH."""
    folder.bin.mkdir(exist_ok=True)
    chroot = shutil.which("chroot", path=SEARCH) or "chroot"
    for name in CLIENTS:
        path = folder.bin / name
        path.write_text(WRAPPER.format(mark=MARK, chroot=chroot, view=view(folder)))
        path.chmod(0o755)
