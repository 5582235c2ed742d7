"""The fake of checkpoint.saver.Saver: what becomes of each save is the test's to say. Ranks are those of a group of threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurmtrain.checkpoint.saver import Header, Outcome, Source


class FakeSaver:
    """`fates`: step to what becomes of its saves one after the other: "" (it is durable) or the error; beyond these all are well.

    `behind`: asynchronous: a save is under way until `end`, or `fail`, or somebody waits for it. `local`: nodes have disks of their own,
    where every save goes. `saved`: steps of all begins; `shared`: of those that go to the run folder.
    """

    def __init__(self, group, fates: Mapping[int, Sequence[str]] | None = None, *, behind: bool = False, local: bool = False) -> None:
        self._group, self._behind, self._local = group, behind, local
        self._fates = {step: list(each) for step, each in (fates or {}).items()}
        self._under_way: int | None = None
        self._ended: list[Outcome] = []
        self.saved: list[int] = []
        self.shared: list[int] = []
        self.failed: list[str] = []
        self.prepared = self.closed = 0

    def prepare(self, source: Source) -> None:
        self.prepared += 1

    def begin(self, header: Header, source: Source, *, shared: bool = True, local: bool = True) -> Outcome | None:
        self.end()
        self.saved.append(header.step)
        if self._local and local:
            self._ended.append(replace(self._outcome(header.step), tier="local"))
            if not shared:
                return None
        self.shared.append(header.step)
        if not self._behind:
            return self._outcome(header.step)
        self._under_way = header.step
        return None

    def end(self) -> None:
        """Let what is under way come to its end."""
        if self._under_way is not None:
            self._ended.append(self._outcome(self._under_way))
            self._under_way = None

    def break_here(self, error: str) -> None:
        """This rank's writer fails: `poll` tells it here."""
        assert self._under_way is not None
        self._ended.append(Outcome(self._under_way, ok=False, stall_s=0.0, write_s=0.0, bytes=0, error=error))

    def poll(self) -> list[Outcome]:
        told, self._ended = self._ended, []
        return told if self._group.rank == 0 else [one for one in told if not one.ok]

    def wait(self) -> list[Outcome]:
        self.end()
        told, self._ended = self._ended, []
        return list(self._group.broadcast(told))

    def fail(self, why: str) -> None:
        self.failed.append(why)
        if self._under_way is not None:
            self._ended.append(Outcome(self._under_way, ok=False, stall_s=0.0, write_s=0.0, bytes=0, error=why))
            self._under_way = None

    def close(self) -> None:
        self.closed += 1

    def _outcome(self, step: int) -> Outcome:
        fates = self._fates.get(step)
        error = fates.pop(0) if fates else ""
        return Outcome(step, ok=not error, stall_s=0.25, write_s=2.0, bytes=0 if error else 1000, error=error)
