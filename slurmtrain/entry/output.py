r"""What a script prints: whole lines out of a stream of bytes, and the steps that they tell of. Pure.

>>> lines = Lines()
>>> lines.feed(b"step 1 loss 5"), lines.feed(b".5\n\x1b[31mstep 2\r"), lines.rest()
([], [b'step 1 loss 5.5\n', b'\x1b[31mstep 2\r'], b'')
>>> told_in("\x1b[31mstep: 12  loss: 8.1 x", re.compile(r"step: (?P<step>\d+)\s+loss: (?P<loss>\S+)"))
Told(step=12, fields={'loss': 8.1})
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from slurmtrain.units import parse_step

_ENDS = re.compile(rb"\r\n|\n|\r")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK = re.compile(r"^\[(?:default\d+|rank\d+)\]:\s?")
"""What torch, and torchrun's own logs, put in front of a rank's lines."""
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b|^terminate called|what\(\):")
_MODULE = re.compile(r"^(?:[A-Za-z_]\w*\.)+(?=[A-Z])")
_LONGEST = 1 << 16
"""A line that is longer is passed on in pieces."""
KEPT_LINES = 200


class Lines:
    """Cuts a stream into lines, each with its end; a carriage return ends one, too (progress bars)."""

    def __init__(self) -> None:
        self._begun = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now."""
        self._begun += data
        found, start = [], 0
        for end in _ENDS.finditer(self._begun):
            found.append(self._begun[start : end.end()])
            start = end.end()
        self._begun = self._begun[start:]
        if len(self._begun) >= _LONGEST:
            found.append(self.rest())
        return found

    def rest(self) -> bytes:
        """What was begun and not ended."""
        rest, self._begun = self._begun, b""
        return rest


@dataclass(frozen=True)
class Told:
    """A step that a script has completed, and what it said of it."""

    step: int
    fields: dict[str, Any] = field(default_factory=dict)


def plain(line: bytes | str) -> str:
    """Without colours, a rank's mark and what ends it."""
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    return _RANK.sub("", _COLOUR.sub("", text).rstrip())


def told_in(line: bytes | str, pattern: re.Pattern[str]) -> Told | None:
    """What the pattern finds in a line; numbers as numbers; None where there is no step."""
    form = pattern.search(plain(line))
    said = form.groupdict() if form else {}
    step = said.pop("step", None)
    number = parse_step(step or "")
    if number is None:
        return None
    return Told(number, {name: _number(value) for name, value in said.items() if value is not None})


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


class Tail:
    """The last lines of a stream, and the one among them that says most about an end."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)

    def add(self, line: bytes) -> None:
        if text := plain(line):
            self._lines.append(text)

    def error(self) -> str:
        """The last line that an exception ends with, without its class's module; empty where there is none."""
        found = next((line for line in reversed(self._lines) if _EXCEPTION.search(line)), "")
        return _MODULE.sub("", found)

    def last(self) -> str:
        return self._lines[-1] if self._lines else ""

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)
