"""How a command ends: one line on stderr for what is known, the traceback and one line for what is not, and the exit code."""

from __future__ import annotations

import difflib
import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import click

from slurmtrain.errors import EXIT_FAULT, EXIT_OK, EXIT_USER, SlurmtrainError, one_line

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
LINE_LIMIT = 600
_REMEDIES = {
    errno.ENOSPC: "make room there (`df`, `df -i`)",
    errno.EDQUOT: "make room there, or ask for a larger quota",
    errno.EROFS: "it is mounted read-only: mount it anew, or name another folder",
}


def guarded(command: Callable[[], Any]) -> int:
    """Run a command; the exit code. What it returns counts as one when it is a number."""
    _open_standard_streams()
    try:
        result = command()
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 the last stand of a command line: each kind has its end below
        return next(end(error) for kind, end in _ENDS if isinstance(error, kind))
    return result if isinstance(result, int) else EXIT_OK


def _open_standard_streams() -> None:
    """Those that whoever started us has closed (>&-): what is said there is lost, and nothing falls over it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 for the rest of this process


def unknown_command(word: str, known: Iterable[str]) -> str:
    """What to say of a word that is no command."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"no command {word!r}; did you mean {near[0]}?" if near else f"no command {word!r}; there are {', '.join(known)}"


def _say(text: str, code: int, prefix: str = "slurmtrain: ") -> int:
    try:
        click.echo(prefix + one_line(text, LINE_LIMIT), err=True)
    except OSError:
        return code
    return code


def _usage(error: click.UsageError) -> int:
    path = error.ctx.command_path if error.ctx else "slurmtrain"
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return EXIT_USER
    return _say(f"{path}: {error.format_message()} (see {path} --help)", EXIT_USER, prefix="")


def _system(error: OSError) -> int:
    if error.errno == errno.EPIPE:
        return _broken_pipe()
    return _say(system_words(error), EXIT_FAULT)


def system_words(error: OSError) -> str:
    """What the system refused: where, why, and what to do where that is always the same."""
    where = f"{error.filename}: " if error.filename else ""
    remedy = _REMEDIES.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}{f': {remedy}' if remedy else ''}"


def _exit(error: SystemExit) -> int:
    if error.code is None:
        return EXIT_OK
    return error.code if isinstance(error.code, int) else _say(str(error.code), EXIT_FAULT)


def _broken_pipe() -> int:
    """Whoever read us has gone: say nothing, also not at exit when Python flushes stdout."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


def _unknown(error: BaseException) -> int:
    traceback.print_exception(error)
    problem = f"{type(error).__name__}: {error}"
    return _say(f"a fault of slurmtrain itself, please report it with the lines above: {problem}", EXIT_FAULT)


_ENDS: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], Callable[[Any], int]], ...] = (
    (SlurmtrainError, lambda error: _say(str(error), error.exit_code)),
    (click.UsageError, _usage),
    (click.ClickException, lambda error: _say(error.format_message(), EXIT_USER)),
    ((KeyboardInterrupt, click.Abort), lambda _: _say("interrupted", EXIT_INTERRUPTED)),
    (OSError, _system),
    (SystemExit, _exit),
    (BaseException, _unknown),
)
