"""The loop beside a running script: passes its output and its signals on, reads its progress, beats its heart, and sees its end.

A script is told to stop by `entry.stop_signal`, once; by the mark alone where it has asked for it (`stop_requested`). TERM from Slurm is
such a request; a second one, and USR1, USR2 and INT, go to the script as they are.

What the heart says of a rank:

| what is known | phase |
|---|---|
| the script calls `heartbeat` | as it says; a beat each time |
| this rank's lines tell of steps | step; it beats until the script has printed nothing for `entry.silent_s` |
| nothing | end: nobody waits for this rank; step once its process is stopped (SIGSTOP), which is no life |
"""

from __future__ import annotations

import re
import selectors
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from slurmtrain.clock import Clock
from slurmtrain.config.entry import EntryConfig
from slurmtrain.entry import child as processes
from slurmtrain.entry.child import Child
from slurmtrain.entry.corner import Corner
from slurmtrain.entry.ending import Ending, Left, ending_of
from slurmtrain.entry.lookout import Lookout
from slurmtrain.entry.narrator import Found, Narrator
from slurmtrain.entry.output import Lines, Tail, plain, told_in
from slurmtrain.entry.wire import Word
from slurmtrain.store.foreign import Foreign
from slurmtrain.telemetry.exitfile import StopReason
from slurmtrain.telemetry.heartbeat import PHASES, Heart, Phase, SilentHeart

POLL_S = 0.2
WORD_S = 2.0
"""After a TERM from outside: what the supervisor takes to say whether a stop was meant."""
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGTERM)
Write = Callable[[bytes], None]


class Beside:
    """Signals are heard from the beginning; the script is there once `run` was called.

    `corner`: None where the node's memory cannot be used; `out`, `err`: where the script's output goes on to.
    """

    def __init__(self, entry: EntryConfig, corner: Corner | None, lookout: Lookout, clock: Clock, *, out: Write, err: Write) -> None:
        self._entry, self._corner, self._lookout, self._clock = entry, corner, lookout, clock
        self._out, self._err = out, err
        self._child: Child | None = None
        self._heart: Heart = SilentHeart()
        self._narrator: Narrator | None = None
        self._pattern: re.Pattern[str] | None = None
        self._passed: set[int] = set()
        self._terms = 0
        self._told = self._listens = self._speaks = False
        self._sign = clock.monotonic()
        self._phase: Phase | None = None
        self.step = 0
        self.tail = Tail()

    # --- signals

    def hear(self, number: int, _frame: FrameType | None = None) -> None:
        """The handler."""
        if number == signal.SIGTERM:
            self._terms += 1
            if self._terms == 1 and (self._listens or self._entry.stop_signal != "none"):
                self._tell_script()
                return
        self._pass_on(number)

    @property
    def called_away(self) -> bool:
        """Whether the script need not be started any more."""
        return self._terms > 0 or self._lookout.asked_now() is not None

    def _pass_on(self, number: int) -> None:
        if self._child is not None:
            self._passed.add(number)
            self._child.signal(number)

    def _tell_script(self) -> None:
        """That it shall save and leave: once."""
        if self._told or self._child is None:
            return
        self._told = True
        name = self._entry.stop_signal or "TERM"
        if self._listens:
            if self._corner is not None and self._lookout.asked() is None:
                self._corner.ask("requeue")
        elif name != "none":
            self._pass_on(getattr(signal, f"SIG{name}"))

    # --- the loop

    def run(self, child: Child, heart: Heart, narrator: Narrator | None) -> Ending:
        """Until the script has ended. `narrator`: of the rank that tells of progress."""
        self._child, self._heart, self._narrator = child, heart, narrator
        self._pattern = re.compile(self._entry.progress) if self._entry.progress and narrator is not None else None
        with selectors.DefaultSelector() as selector:
            streams = [_Stream(child.out, self._out, self._line), _Stream(child.err, self._err, self._error_line)]
            for stream in streams:
                selector.register(stream.fd, selectors.EVENT_READ, stream.read)
            if self._corner is not None:
                selector.register(self._corner.fd, selectors.EVENT_READ, self._words_of_script)
            while (code := child.poll()) is None:
                self._read(selector, POLL_S)
                self._look()
            self._read(selector, 0.0)
            self._read(selector, 0.0)
            for stream in streams:
                stream.close()
        child.end_group()
        return ending_of(Left(code, self._last_word(), frozenset(self._passed), self.tail.error(), self.tail.last()))

    def never_begun(self) -> Ending:
        return ending_of(Left(None, self._last_word(), frozenset()))

    def _read(self, selector: selectors.BaseSelector, timeout_s: float) -> None:
        for key, _ in selector.select(timeout_s):
            if key.data() is False:
                selector.unregister(key.fd)

    def _look(self) -> None:
        if self._lookout.asked() is not None:
            self._tell_script()
        for found in self._lookout.found():
            self.see(found)
        if not self._speaks:
            self._beat_for_it()

    def _beat_for_it(self) -> None:
        """The last two rows of the table above."""
        assert self._child is not None
        if self._child.stands_still():
            self._enter("step")
        elif self._pattern is None:
            self._enter("end")
        elif not (limit := self._entry.silent_s) or self._clock.monotonic() - self._sign < limit:
            self._enter("step")
            self._heart.beat()

    def _enter(self, phase: Phase) -> None:
        if phase != self._phase:
            self._phase = phase
            self._heart.beat(phase)

    def _last_word(self) -> StopReason | None:
        """Once the script is gone: a TERM that was no stop would be a fault, so the supervisor's word on it is waited for."""
        limit = self._clock.monotonic() + (WORD_S if self._terms else 0.0)
        while (found := self._lookout.asked_now()) is None and self._clock.monotonic() < limit:
            self._clock.sleep(POLL_S)
        return found

    # --- progress

    def see(self, found: Found) -> None:
        """Names of files tell of a checkpoint, or of a step."""
        if self._narrator is not None:
            self._narrator.found(found)
        if found.step is not None and found.step > self.step:
            self._progressed(found.step, {})

    def _line(self, line: bytes) -> None:
        self._sign = self._clock.monotonic()
        told = told_in(line, self._pattern) if self._pattern is not None else None
        if told is not None:
            self._progressed(told.step, told.fields)

    def _error_line(self, line: bytes) -> None:
        self.tail.add(line)
        self._line(line)

    def _progressed(self, step: int, fields: dict[str, Any]) -> None:
        self.step = step
        self._heart.beat(step=step)
        if self._narrator is not None:
            self._narrator.step(step, fields)

    def _words_of_script(self) -> bool:
        assert self._corner is not None
        for line in plain(self._corner.read()).splitlines():
            word = Word.from_line(line)
            if word is not None:
                self._take(word)
        return True

    def _take(self, word: Word) -> None:
        self._listens = self._listens or word.listens
        if word.step is None:
            return
        if word.durable is not None:
            if self._narrator is not None:
                self._narrator.durable(word.step, Foreign(word.step, word.durable))
            return
        self._speaks = True
        self._enter(next((one for one in PHASES if one == word.phase), "step"))
        self._progressed(word.step, word.metrics)


class _Stream:
    """One of the script's two: passed on in whole lines."""

    def __init__(self, fd: int, write: Write, line: Callable[[bytes], None]) -> None:
        self.fd, self._write, self._line, self._lines = fd, write, line, Lines()

    def read(self) -> bool:
        """False at its end."""
        data = processes.read(self.fd)
        self._take(self._lines.feed(data))
        return bool(data)

    def close(self) -> None:
        if rest := self._lines.rest():
            self._take([rest + b"\n"])

    def _take(self, lines: list[bytes]) -> None:
        if lines:
            with suppress(OSError):
                self._write(b"".join(lines))
        for line in lines:
            self._line(line)
