"""The command that goes on with a run: the words that began it and --resume, so that no --set of theirs is lost.

What was said once and for all is left out: from which step, from which other run.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from slurmtrain.cli.options import words
from slurmtrain.rundir import RunDir

_BEGINS = ("submit", "run")
_DROPPED = frozenset({"--dry-run", "--parsable"})
_WITH_VALUE = frozenset({"--prepare", "--from"})


def again(run: RunDir, *, here: Path, root: bool) -> str | None:
    """None where the folder does not tell, or is a copy of the run that it tells of.

    `here`: where it would be typed, which is left for the folder where the run was begun; `root`: name the root too.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        request = json.loads(run.request_json.read_bytes())
        argv, cwd = list(request["submitter"]["argv"]), Path(request["submitter"]["cwd"])
        if argv[1] in _BEGINS and request["name"] == run.name and cwd.is_dir():
            typed = resume_words(argv[1:], root=str(run.path.parent) if root else "")
            away = "" if here == cwd else f"cd {shlex.quote(str(cwd))} && "
            return away + shlex.join(["slurmtrain", *typed])
    return None


def resume_words(argv: Sequence[str], *, root: str = "") -> list[str]:
    """The words from the command's name on.

    >>> resume_words(["submit", "a.toml", "--set", "x=1", "--", "-v"])
    ['submit', 'a.toml', '--set', 'x=1', '--resume', '--', '-v']
    """
    cut = argv.index("--") if "--" in argv else len(argv)
    own = list(_kept(argv[:cut]))
    named = any(word == "--root" or word.startswith("--root=") for word in own)
    return [*own, *([] if named or not root else ["--root", root]), "--resume", *argv[cut:]]


def _kept(said: Sequence[str]) -> Iterator[str]:
    skip = False
    for word in words(said):
        if not skip and word not in _WITH_VALUE | _DROPPED and not word.startswith(("--resume=", "--from=", "--prepare=")):
            yield word
        skip = word in _WITH_VALUE
