"""A TOML file that people write, read into plain values; every way to fail is one line."""

from __future__ import annotations

import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from slurmtrain.config.keys import meant, near_words
from slurmtrain.errors import ConfigError, one_line

MAX_BYTES = 1 << 20
"""A larger file is not a configuration but something else, given by mistake."""


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The tables of a file; `what` names it in errors ("job file"). Raises ConfigError."""
    text = _read_text(path, what)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax(str(error)), where=str(path)) from None
    except RecursionError:
        raise ConfigError(f"not a {what}: brackets are nested too deeply", where=str(path)) from None


def _read_text(path: Path, what: str) -> str:
    where = str(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"is a folder, not a {what}{_files_in(path)}", where=where)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"is not a regular file, so not a {what}", where=where)
        if status.st_size > MAX_BYTES:
            raise ConfigError(f"is too large for a {what} ({status.st_size} bytes)", where=where)
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"no such {what}{meant(_names_beside(path))}", where=where) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not text (byte {error.start} is not UTF-8), so not a {what}", where=where) from None
    except OSError as error:
        raise ConfigError(f"cannot read this {what}: {error.strerror}", where=where) from None


def _names_beside(path: Path) -> tuple[str, ...]:
    try:
        beside = [p.name for p in path.parent.iterdir() if p.suffix == path.suffix]
    except OSError:
        return ()
    return tuple(str(path.with_name(name)) for name in near_words(path.name, beside))


def _files_in(folder: Path) -> str:
    try:
        inside = sorted(p for p in folder.iterdir() if p.suffix == ".toml")
    except OSError:
        return ""
    return f": give one of its files, such as {inside[0]}" if inside else ""


def _syntax(message: str) -> str:
    form = re.fullmatch(r"(.*) \(at (.*)\)", message, re.DOTALL)
    if not form:
        return f"not TOML: {one_line(message)}"
    place = "its end" if form[2] == "end of document" else form[2]
    return f"not TOML at {place}: {one_line(form[1])}"
