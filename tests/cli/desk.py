"""A login node for tests of the command line: fake Slurm, clock and disk; real git, bash and interpreter; a job and a site file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from click.testing import CliRunner, Result

from slurmtrain.cli.doors import Doors
from slurmtrain.cli.main import main
from slurmtrain.data.build import build
from slurmtrain.rundir import RunDir
from slurmtrain.shell import Completed, SystemShell
from tests.config.bad_files import GOOD_JOB, GOOD_SITE
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FakeDisk
from tests.fakes.slurm import FakeSlurm


class QuickShell(SystemShell):
    """The system's, but this interpreter is asked for its versions once for all tests."""

    _known: ClassVar[dict[tuple[str, ...], Completed]] = {}

    def run(self, argv: Sequence[str], **more: Any) -> Completed:
        if argv[0] != sys.executable:
            return super().run(argv, **more)
        if tuple(argv) not in self._known:
            self._known[tuple(argv)] = super().run(argv, **more)
        return self._known[tuple(argv)]


@dataclass
class Desk:
    """`folder` holds job.toml, mysite.toml, tokens/ and the root runs/."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)
    disk: FakeDisk = field(default_factory=FakeDisk)

    def __post_init__(self) -> None:
        self.slurm = FakeSlurm(self.clock)
        self.root = self.folder / "runs"
        self.job_file = self.folder / "job.toml"
        (self.folder / "text.py").write_text("# a few words of text for the tokens\n" * 40)
        build([self.folder / "text.py"], self.folder / "tokens")
        self.root.mkdir()
        self.job_file.write_text(GOOD_JOB)
        (self.folder / "mysite.toml").write_text(GOOD_SITE)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "SLURMTRAIN_SITE_PATH": str(self.folder),
            "SLURMTRAIN_SITE": "mysite",
            "SLURMTRAIN_ROOT": str(self.root),
            "GIT_CEILING_DIRECTORIES": str(self.folder.parent),
            **self.env,
        }

    @property
    def doors(self) -> Doors:
        return Doors(self.env, QuickShell(), self.clock, self.disk, self.slurm)

    def type(self, *words: str | Path) -> Result:
        """What a person types after `slurmtrain`."""
        return CliRunner().invoke(main, [str(word) for word in words], obj=self.doors)

    def submit(self, *words: str | Path) -> Result:
        return self.type("submit", self.job_file, *words)

    def run(self, name: str = "job") -> RunDir:
        return RunDir(self.root / name)

    def files(self) -> list[str]:
        """Everything below the root."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))


def one_line_of(result: Result, code: int = 2) -> str:
    """The one line on stderr of a command that failed with this code and printed nothing else."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]
