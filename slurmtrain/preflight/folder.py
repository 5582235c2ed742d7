"""The folder of a preflight that no run asked for: this module alone knows the paths in it.

    <root>/.preflight/20261130-023400-4711/request.json nonce     what every node is asked, and a word by which it knows this folder
                                           nodes/NODE.json        the answers
                                           shared/                where every node makes a file, as it would in a run
                                           check-000.log ...      what the nodes' steps printed
                                           world-1-0/NODE.json    how large MPI's world was, of the first question's first group
                                           probe-000.log          what the measuring processes printed

It is removed when all nodes are fit, and kept when not.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NAME = ".preflight"
_MOST = 100


@dataclass(frozen=True)
class PreflightDir:
    path: Path

    @property
    def request(self) -> Path:
        return self.path / "request.json"

    @property
    def nonce(self) -> Path:
        return self.path / "nonce"

    @property
    def nodes_dir(self) -> Path:
        return self.path / "nodes"

    @property
    def shared(self) -> Path:
        return self.path / "shared"

    @property
    def check_log(self) -> Path:
        """Pattern of a StepSpec."""
        return self.path / "check-%n.log"

    @property
    def probe_log(self) -> Path:
        return self.path / "probe-%n.log"

    def world(self, number: int, group: int) -> Path:
        return self.path / f"world-{number}-{group}"

    def remove(self) -> None:
        """With all that is in it, and the folder of these folders where it is the last; what cannot be removed stays."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()


def make_folder(root: Path, job_id: str, now: float) -> PreflightDir:
    """A new one below the root. Raises OSError."""
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{job_id or 'local'}"
    for number in range(1, _MOST):
        made = PreflightDir(root / NAME / (name if number == 1 else f"{name}-{number}"))
        made.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            made.path.mkdir()
            made.nodes_dir.mkdir()
            made.shared.mkdir()
            return made
    raise FileExistsError(17, "too many preflights of one second", str(root / NAME))
