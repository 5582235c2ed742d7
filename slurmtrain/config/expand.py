"""`~` and $VARIABLES in paths that people write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from slurmtrain.errors import ConfigError

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def expand(path: Path | str, env: Mapping[str, str], *, where: str = "", key: str = "") -> Path:
    """The path with `~`, $NAME and ${NAME} filled in from `env`; a relative path stays relative.

    Raises ConfigError (with `where` and `key`) when a variable is not set, and for ~user, whose home only the system knows.

    >>> expand("$SCRATCH/runs", {"SCRATCH": "/lustre/ada"}).as_posix(), expand("~", {"HOME": "/home/ada"}).as_posix()
    ('/lustre/ada/runs', '/home/ada')
    """
    text = str(path)

    def value(name: str) -> str:
        found = env.get(name)
        if not found:
            raise ConfigError(f"${name} is not set: set it, or write the path out", where=where, key=key, value=text)
        return found

    filled = _VARIABLE.sub(lambda form: value(form[1] or form[2]), text)
    if filled.startswith("~"):
        home, slash, rest = filled.partition("/")
        if home != "~":
            problem = f"{home} cannot be filled in: write the path out, or use ~ for your own home"
            raise ConfigError(problem, where=where, key=key, value=text)
        filled = value("HOME") + slash + rest
    return Path(filled)
