"""The door to a node's hardware and system: files below `root`, programs, the environment. Tests give it others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.clock import Clock
from slurmtrain.shell import Completed, Shell


class CannotTellError(Exception):
    """A source could not be looked at. `said`: why; `remedy`: what to do about it."""

    def __init__(self, said: str, remedy: str) -> None:
        super().__init__(said)
        self.said, self.remedy = said, remedy


@dataclass(frozen=True)
class Machine:
    """The node that this runs on. `root`: "/" but in tests, which replay what other machines have below /proc and /sys."""

    shell: Shell
    environ: Mapping[str, str]
    clock: Clock
    root: Path = Path("/")

    def path(self, name: str) -> Path:
        """Of an absolute name, such as /sys/class/infiniband."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str:
        """A file's text without blanks around it. Raises OSError."""
        return self.path(name).read_text(errors="replace").strip()

    def text_or(self, name: str, default: str = "") -> str:
        """As `text`; the default where the file cannot be read."""
        try:
            return self.text(name)
        except OSError:
            return default

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; none where there is no such folder."""
        try:
            return sorted(entry.name for entry in self.path(folder).iterdir())
        except OSError:
            return []

    def run(self, *argv: str, timeout_s: float = 30.0) -> Completed:
        """A program, its messages in English."""
        return self.shell.run(argv, timeout_s=timeout_s, env={**self.environ, "LC_ALL": "C"})
