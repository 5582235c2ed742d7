"""An nvidia-smi, a dmesg and a journalctl that print what was recorded: real programs, first on a PATH of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmtrain.clock import Clock
from slurmtrain.config.site import SiteConfig
from slurmtrain.preflight.answer import NodeAnswer
from slurmtrain.preflight.diagnosis import diagnose
from slurmtrain.preflight.finding import Finding
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._smi import lost_gpus, parse_smi
from slurmtrain.shell import SystemShell
from tests.fakes.clock import FakeClock

RECORDED = Path(__file__).parent / "recorded" / "nvidia"
_PROGRAM = """#!/bin/sh
# Prints the recording that is named after its arguments, and takes its exit code; "hang": comes to no end.
name=$(basename "$0"); for word; do name="$name $word"; done
echo "$name" >> "$0.asked"
[ -e "$0.hang" ] && exec tail -f /dev/null
[ -e "$0.d/$name.err" ] && cat "$0.d/$name.err" >&2
[ -e "$0.d/$name.out" ] || exit 1
cat "$0.d/$name.out"
exit "$(cat "$0.d/$name.rc")"
"""


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def side_by_side(log: str, count: int) -> str:
    """A log of one GPU as that of a node with several: the same GPU at other addresses."""
    head, gpu, tail = re.split(r"(?s)(<gpu .*</gpu>)", log)
    return head + "\n".join(gpu.replace(":00.0", f":{index:02d}.0") for index in range(count)) + tail


def nvlink(text: str, count: int) -> str:
    """What is said of one GPU as of a node with several."""
    return "".join(text.replace("GPU 0:", f"GPU {index}:", 1) for index in range(count))


def changed(log: str, index: int, **values: str) -> str:
    """A log in which one GPU's elements have other values."""
    parts = re.split(r"(?s)(<gpu .*?</gpu>)", log)
    for name, value in values.items():
        parts[2 * index + 1], found = re.subn(rf"(<{name}>)[^<]*", rf"\g<1>{value}", parts[2 * index + 1], count=1)
        assert found, f"no {name} in the recording"
    return "".join(parts)


def smi_facts(printed: str) -> dict[str, Any]:
    """The facts of a node whose nvidia-smi prints this."""
    try:
        facts = parse_smi(printed)
    except ValueError:
        facts = {"driver": "", "cuda": "", "gpus": [], "lost": lost_gpus(printed), "warnings": []}
    return {**facts, "uptime_s": 1e6}


@dataclass
class Node:
    """A node below a folder, with programs of its own in front of this machine's."""

    folder: Path
    uptime_s: float = 1e6
    clock: Clock = field(default_factory=FakeClock)

    def says(self, command: str, out: str = "", err: str = "", rc: int = 0) -> Node:
        """From now on the command prints this."""
        program = self._program(command.partition(" ")[0])
        said = program.with_name(f"{program.name}.d")
        said.mkdir(exist_ok=True)
        for kind, text in (("out", out), ("err", err), ("rc", str(rc))):
            (said / f"{command}.{kind}").write_text(text)
        return self

    def hangs(self, name: str) -> Node:
        self._program(name).with_name(f"{name}.hang").touch()
        return self

    def asked(self, name: str) -> list[str]:
        """The commands that were run."""
        return self._program(name).with_name(f"{name}.asked").read_text().splitlines()

    def machine(self) -> Machine:
        (self.folder / "proc").mkdir(parents=True, exist_ok=True)
        (self.folder / "proc" / "uptime").write_text(f"{self.uptime_s:.2f} 1.0\n")
        return Machine(SystemShell(), {"PATH": f"{self.folder / 'bin'}:{os.defpath}"}, self.clock, self.folder)

    def _program(self, name: str) -> Path:
        path = self.folder / "bin" / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_PROGRAM)
            path.chmod(0o755)
        return path


def request(gpu: str | None = "NVIDIA H100 SXM", gpus: int = 8, *, only: tuple[str, ...] = (), **site: object) -> Request:
    node = {"gpus": gpus, **({} if gpu is None else {"gpu": gpu})}
    config = SiteConfig.model_validate({"name": "here", "device": "cuda", "node": node, **site})
    return Request(1000.0, "/answers", "word", "/nonce", ("/runs",), config, gpus_per_node=gpus, health=True, only=only)


def findings(facts: Mapping[str, Mapping[str, Mapping[str, object]]], asked: Request) -> list[Finding]:
    """What the checks of these sources find: `facts` by node and source."""
    blank = NodeAnswer("", True, (), "3.11.7", "0.1.0", 1, 1, t=1000.0, seen=1001.0)
    answers = {node: NodeAnswer(**{**blank.__dict__, "node": node, "facts": known}) for node, known in facts.items()}
    return diagnose(answers, asked)
