"""A login node in an allocation of four nodes: srun is a fake that runs the nodes' own code in this process, the clock's check alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurmtrain.atomic import SystemDisk, to_json
from slurmtrain.cli.doors import Doors
from slurmtrain.preflight import listing, registry
from slurmtrain.preflight.answer import NodeAnswer, read_answer
from slurmtrain.preflight.checks.clock_skew import CHECK
from slurmtrain.preflight.node import check
from slurmtrain.preflight.request import Request, read_request
from slurmtrain.preflight.sources.clock import SOURCE
from slurmtrain.slurm.hostlist import expand
from slurmtrain.slurm.types import JobInfo
from tests.cli.desk import Desk, QuickShell
from tests.fakes.clock import FakeClock
from tests.fakes.shell import Call, FakeProcess

SITE = """\
description = "four ranks a node"
device = "cpu"

[slurm]
stop_notice_s = 60
mpi = "pmi2"

[node]
gpus = 4

"""
Change = Callable[[NodeAnswer], NodeAnswer]


class Srun(QuickShell):
    """`hung`: nodes that never answer; `changes`: what is otherwise in the answer of a node; `size`: what MPI says, 0: the right one;
    `asked`: nodes of each step; `requests`: what they were asked.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.hung, self.changes, self.size = set[str](), dict[str, Change](), 0
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.requests: list[Request] = []

    def start(self, argv: Sequence[str], *, env: Any = None, cwd: Path | None = None, stdout: Path | None = None) -> FakeProcess:
        assert argv[0] == "srun", argv
        words = [word for word in argv[1:] if not word.startswith("--")]
        nodes = expand(next(word.partition("=")[2] for word in argv if word.startswith("--nodelist=")))
        module, file = words[words.index("-m") + 1 :][:2]
        self.asked.append((module, nodes))
        process = FakeProcess(Call(tuple(argv), env, cwd, stdout=stdout))
        for node in nodes:
            if node not in self.hung:
                (self._look if module == "slurmtrain.preflight.node" else self._size)(node, Path(file), len(nodes))
        if not self.hung & set(nodes):
            process.finish(0)
        return process

    def _look(self, node: str, file: Path, count: int) -> None:
        request = read_request(file)
        self.requests.append(request)
        assert check(request, {"SLURMD_NODENAME": node, "SLURM_CPUS_ON_NODE": "8"}, SystemDisk(), self.clock) == ""
        if node in self.changes:
            path = Path(request.answers) / f"{node}.json"
            answer = read_answer(path)
            assert answer is not None
            path.write_bytes(self.changes[node](answer).to_json())

    def _size(self, node: str, folder: Path, count: int) -> None:
        (folder / f"{node}.json").write_bytes(to_json({"v": 1, "node": node, "size": self.size or count}))


class PreflightDesk(Desk):
    """`in_job()`: inside an allocation of n1 to n4; `site(lines)`: the site file, with more lines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shell = Srun(self.clock)
        self.site()

    @property
    def doors(self) -> Doors:
        return Doors(self.env, self.shell, self.clock, self.disk, self.slurm)

    def site(self, lines: str = "") -> None:
        (self.folder / "mysite.toml").write_text(SITE + lines)

    def in_job(self) -> None:
        nodes = ("n1", "n2", "n3", "n4")
        self.slurm.put(JobInfo("33", "bash", "RUNNING", nodes=nodes, batch_host="n1"))
        self.env.update(SLURM_JOB_ID="33", SLURM_JOB_NUM_NODES="4", SLURM_JOB_CPUS_PER_NODE="8(x4)")

    @property
    def history(self) -> Path:
        return self.root / "preflight.jsonl"

    def kept(self) -> list[Path]:
        return sorted((self.root / ".preflight").glob("*"))


def desk_in_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreflightDesk:
    """One inside an allocation, with the check of clocks alone."""
    for module in (registry, listing):
        monkeypatch.setattr(module, "all_checks", lambda: (CHECK,))
    for module in (registry, listing):
        monkeypatch.setattr(module, "all_sources", lambda: (SOURCE,))
    monkeypatch.setattr("slurmtrain.preflight.node.remove_leftovers", lambda clock: [])  # they have tests of their own, and take a while
    monkeypatch.setattr("slurmtrain.preflight.answer.packages", lambda: {"torch": "2.13.0"})
    made = PreflightDesk(tmp_path)
    made.in_job()
    return made


def ahead(by_s: float) -> Change:
    """A clock that goes ahead."""
    return lambda answer: replace(answer, facts={"clock": {"t": answer.facts["clock"]["t"] + by_s}})
