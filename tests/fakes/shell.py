"""The fake of slurmtrain.shell.Shell: answers by the beginning of argv, from a table, and keeps what was asked."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurmtrain.shell import RC_NOT_FOUND, RC_TIMED_OUT, Completed


@dataclass(frozen=True)
class Call:
    """One command as it was asked for."""

    argv: tuple[str, ...]
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    stdin: str = ""
    timeout_s: float | None = None
    stdout: Path | None = None


@dataclass(frozen=True)
class Said:
    """What a command leaves. `seconds`: how long it takes; longer than the limit means rc 124."""

    out: str = ""
    err: str = ""
    rc: int = 0
    seconds: float = 0.0


Answer = str | Said | Callable[[Call], "str | Said"]


@dataclass
class FakeProcess:
    """A program that runs until the test ends it, or a signal does (unless it `ignores` it)."""

    call: Call
    pid: int = 4242
    ignores: frozenset[int] = frozenset()
    rc: int | None = None
    signals: list[int] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def finish(self, rc: int = 0) -> None:
        if self.rc is None:
            self.rc = rc
            self.over.set()

    def poll(self) -> int | None:
        return self.rc

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Without a limit it waits for the test to end it; a limit passes in no time."""
        self.over.wait(5.0 if timeout_s is None else 0.001)
        return self.rc

    def signal(self, signum: int) -> None:
        if self.rc is None:
            self.signals.append(signum)
            if signum not in self.ignores:
                self.finish(-signum)

    def kill_group(self) -> None:
        self.signals.append(signal.SIGKILL)
        self.finish(-signal.SIGKILL)


@dataclass
class FakeTalk(FakeProcess):
    """A program that one speaks with: `said` holds what came in; `prints(text)`: it will be heard; `deaf`: it takes no more."""

    said: list[str] = field(default_factory=list)
    deaf: bool = False
    hung_up: bool = False
    _printed: str = ""

    def prints(self, text: str) -> None:
        self._printed += text

    def say(self, text: str) -> bool:
        if self.deaf or self.hung_up or self.rc is not None:
            return False
        self.said.append(text)
        return True

    def heard(self) -> str:
        text, self._printed = self._printed, ""
        return text

    def hang_up(self) -> None:
        self.hung_up = True

    def close(self) -> None:
        self.hang_up()


class FakeShell:
    """`answers`: {beginning of argv: answer, or a list of answers that are given in turn, the last one from then on}.

    The longest beginning that fits wins; what fits none is a program that is not there. `programs`: {beginning of argv: what makes
    the process that `start` gives back}.
    """

    def __init__(
        self,
        answers: Mapping[tuple[str, ...], Answer | list[Answer]] | None = None,
        programs: Mapping[tuple[str, ...], Callable[[Call], FakeProcess]] | None = None,
    ) -> None:
        self.answers: dict[tuple[str, ...], Answer | list[Answer]] = dict(answers or {})
        self.programs = dict(programs or {})
        self.calls: list[Call] = []
        self.started: list[FakeProcess] = []

    def asked(self, *beginning: str) -> list[Call]:
        """The calls that began so."""
        return [call for call in self.calls if call.argv[: len(beginning)] == beginning]

    def run(
        self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: str = ""
    ) -> Completed:
        call = Call(tuple(argv), env, cwd, stdin, timeout_s)
        self.calls.append(call)
        key = _longest(self.answers, call.argv)
        if key is None:
            return Completed(call.argv, RC_NOT_FOUND, "", f"{call.argv[0]}: No such file or directory")
        said = self._next(key, call)
        if said.seconds > timeout_s:
            return Completed(call.argv, RC_TIMED_OUT, said.out, f"{said.err}{call.argv[0]}: no answer in {timeout_s:g} s")
        return Completed(call.argv, said.rc, said.out, said.err)

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdout: Path | None = None
    ) -> FakeProcess:
        call = Call(tuple(argv), env, cwd, stdout=stdout)
        self.calls.append(call)
        key = _longest(self.programs, call.argv)
        if key is None:
            raise FileNotFoundError(2, "No such file or directory", call.argv[0])
        process = self.programs[key](call)
        self.started.append(process)
        return process

    def converse(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, stderr: Path | None = None
    ) -> FakeTalk:
        talk = self.start(argv, env=env, cwd=cwd, stdout=stderr)
        assert isinstance(talk, FakeTalk), "programs that are spoken with make a FakeTalk"
        return talk

    def _next(self, key: tuple[str, ...], call: Call) -> Said:
        answer = self.answers[key]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if not isinstance(answer, str | Said):
            answer = answer(call)
        return Said(answer) if isinstance(answer, str) else answer


def _longest(table: Mapping[tuple[str, ...], object], argv: tuple[str, ...]) -> tuple[str, ...] | None:
    return max((key for key in table if argv[: len(key)] == key), key=len, default=None)
