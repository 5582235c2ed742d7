"""Bars on a terminal, silence elsewhere."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

from slurmtrain.cli.bars import bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch) -> Terminal:
    """What stands on stderr from here on."""
    told = Terminal()
    monkeypatch.setattr("sys.stderr", told)
    for name, value in {"TERM": "xterm", "COLUMNS": "160", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    return told


def test_sizes_are_shown_as_sizes_and_threads_may_tell(monkeypatch):
    told = terminal(monkeypatch)
    with bar("copying", 8 << 20, sizes=True) as advance, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: advance(1 << 20), range(8)))
    shown = told.getvalue()
    assert "copying" in shown
    assert "8.0/8.0 MiB" in shown


def test_counts_are_shares(monkeypatch):
    told = terminal(monkeypatch)
    with bar("reading", 200) as advance:
        advance(100)
    assert "reading" in told.getvalue()
    assert " 50%" in told.getvalue()


def test_what_is_no_terminal_gets_nothing(capsys):
    with bar("reading", 200, sizes=True) as advance:
        advance(200)
    assert capsys.readouterr() == ("", "")
