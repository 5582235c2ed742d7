"""What the system has left of processes and open files: the control group's limit and the kernel's own (proc(5), cgroup-v2)."""

from __future__ import annotations

from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._cgroup import folders, number


def look(machine: Machine, request: Request) -> Facts:  # noqa: ARG001 a source's signature
    files = machine.text_or("/proc/sys/fs/file-nr").split()
    return {
        "tasks_room": _tasks_room(machine),
        "files_used": int(files[0]) - int(files[1]) if len(files) == 3 else 0,
        "files_most": int(files[2]) if len(files) == 3 else 0,
    }


def _tasks_room(machine: Machine) -> int | None:
    """Processes and threads that may still be made; None where nothing limits them."""
    rooms = []
    for folder in folders(machine, "pids"):
        most, now = number(machine, f"{folder}/pids.max"), number(machine, f"{folder}/pids.current")
        if most is not None and now is not None:
            rooms.append(most - now)
    most, now = number(machine, "/proc/sys/kernel/threads-max"), _threads(machine)
    if most is not None and now is not None:
        rooms.append(most - now)
    return min(rooms, default=None)


def _threads(machine: Machine) -> int | None:
    """Of the whole machine: the fourth word of /proc/loadavg is RUNNING/ALL."""
    words = machine.text_or("/proc/loadavg").split()
    total = words[3].partition("/")[2] if len(words) > 3 else ""
    return int(total) if total.isdigit() else None


SOURCE = Source("host", look, "the kernel does not answer: have the node rebooted")
