"""The control groups that this process lies in, of both versions (kernel: admin-guide/cgroup-v1, cgroup-v2)."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.machine import Machine

_ROOT = "/sys/fs/cgroup"


def folders(machine: Machine, controller: str) -> Iterator[str]:
    """Folders of this process's group and of those above it, innermost first; of version 1 those of the controller.

    A container sees its own group as the root, so a path that is not there is left out, and the root is looked at always.
    """
    for line in machine.text_or("/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            yield from _upwards(_ROOT, path)
        elif controller in names.split(","):
            yield from _upwards(f"{_ROOT}/{controller}", path)


def _upwards(root: str, path: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part]
    for count in range(len(parts), -1, -1):
        yield "/".join([root, *parts[:count]])


def number(machine: Machine, *names: str) -> int | None:
    """The number in the first of these files that there is; None where there is none, and for "max"."""
    for name in names:
        text = machine.text_or(name)
        if text:
            return int(text) if text.isdigit() else None
    return None
