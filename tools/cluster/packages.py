"""Debian's Slurm packages: what is missing, and how it is installed without the system's own daemons being started."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .real import real_cluster
from .spec import DevclusterError

PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
}
"""Program -> the Debian package that holds it."""
PLUGINS = "slurm-wlm-basic-plugins"
ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core"}
"""mariadb-server-core holds the server and its set-up, but no service of the system and no database of its own."""
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POLICY = Path("/usr/sbin/policy-rc.d")
MARK = "# devcluster: no daemon starts while its packages are installed"
DENY_ALL = f"#!/bin/sh\n{MARK}\nexit 101\n"

Apt = Callable[[Sequence[str]], int]


def missing_packages(*, accounting: bool, search: str = SEARCH) -> list[str]:
    """Packages whose program is not found."""
    wanted = {**PROGRAMS, **(ACCOUNTING if accounting else {})}
    gone = [package for program, package in wanted.items() if shutil.which(program, path=search) is None]
    return [*gone, PLUGINS] if gone else []


def need_programs(*, accounting: bool, search: str = SEARCH, suite: str = "") -> None:
    """Raises DevclusterError with the command to run when a package is missing."""
    if gone := missing_packages(accounting=accounting, search=search):
        command = "devcluster install" + (" --accounting" if accounting else "") + (f" --suite {suite}" if suite else "")
        raise DevclusterError(f"not installed: {' '.join(gone)}: run `{command}` (Debian 12 or 13, as root)")


def install(*, accounting: bool, environ: Mapping[str, str], search: str = SEARCH) -> str:
    """Install what is missing; the line that says what was done.

    Raises DevclusterError on a machine of a real Slurm cluster, without root or apt-get, or when apt-get fails.
    """
    gone = missing_packages(accounting=accounting, search=search)
    if not gone:
        return "Slurm's packages are installed"
    if why := real_cluster(environ):
        raise DevclusterError(f"this machine has a Slurm already ({why}): nothing was installed; missing here: {' '.join(gone)}")
    if shutil.which("apt-get", path=search) is None or os.geteuid() != 0:
        raise DevclusterError(f"installing {' '.join(gone)} needs root and apt-get (Debian 12 or 13)")
    with no_daemon_starts():
        apt_install(gone, _apt)
    return f"installed: {' '.join(gone)}"


def apt_install(packages: Sequence[str], apt: Apt) -> None:
    """apt-get install, after an update where the lists that are there do not do."""
    command = ["install", "-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", *packages]
    if apt(command) == 0:
        return
    apt(["update"])
    if code := apt(command):
        raise DevclusterError(f"apt-get install {' '.join(packages)} ended with code {code}: see its output above")


def _apt(arguments: Sequence[str]) -> int:
    argv = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *arguments]
    return subprocess.run(argv, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, stdout=2, check=False).returncode


@contextmanager
def no_daemon_starts(policy: Path = POLICY) -> Iterator[None]:
    """Debian asks policy-rc.d before a package starts a service: ours says no; what was there before comes back."""
    saved = policy.with_name(policy.name + ".before-devcluster")
    if not (saved.exists() and MARK in _text(policy)):  # else an interrupted install left ours in place
        if policy.exists():
            policy.rename(saved)
        policy.write_text(DENY_ALL)
        policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)
        if saved.exists():
            saved.rename(policy)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""
