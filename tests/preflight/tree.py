"""Recorded machines: the files of one below a folder, that stands for its root."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurmtrain.config.site import SiteConfig
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.shell import Shell, SystemShell
from tests.fakes.clock import FakeClock

RECORDED = Path(__file__).with_name("recorded") / "sys"
_LINE = re.compile(r"(/(?:[^/:]|:(?=[0-9a-f]{2}[:.]))+(?:/[^/:]+)*):(.*)")


class Tree:
    """Files by their absolute names, such as `grep -r .` prints them: NAME:TEXT."""

    def __init__(self, root: Path, recorded: str = "") -> None:
        self.root, self._before = root, dict[Path, str | None]()
        for line in (RECORDED / f"{recorded}.txt").read_text().splitlines() if recorded else ():
            if not line.startswith("#"):
                name, text = _LINE.fullmatch(line).groups()
                self.write(name, text)

    def write(self, name: str, text: object) -> None:
        path = self.root / name.lstrip("/")
        self._before.setdefault(path, path.read_text() if path.exists() else None)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def keep(self) -> None:
        """What is there now is what `restore` brings back."""
        self._before.clear()

    def restore(self) -> None:
        for path, text in self._before.items():
            if text is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text(text)
        self._before.clear()

    def machine(self, clock: Any = None, environ: Mapping[str, str] | None = None, shell: Shell | None = None) -> Machine:
        return Machine(shell or SystemShell(), environ or {}, clock or FakeClock(), self.root)


def request(*shared: str | Path, site: Mapping[str, Any] | None = None, **more: Any) -> Request:
    """As a start asks; the site is one of 8 GPUs unless it says otherwise."""
    made = SiteConfig.model_validate({"name": "here", "device": "cuda", "node": {"gpus": 8}, **(site or {})})
    return Request(1.0, "/answers", "word", "/nonce", tuple(map(str, shared)), made, health=True, **more)


def judged(check: Check, facts: Facts, asked: Request) -> list[tuple[str, str]]:
    """(grade, line without its remedy) of each trouble."""
    found = list(check.judge(facts, asked))
    assert all(one.remedy for one in found)
    return [(one.grade, f"{one.item}: {one.said}" if one.item else one.said) for one in found]


def here() -> Machine:
    """This machine."""
    return Machine(SystemShell(), dict(os.environ), FakeClock())
