"""The command that goes on with a run: the words that began it and --resume, so that no --set of theirs is lost."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from slurmtrain.rundir import RunDir

_BEGINS = ("submit", "run")
_DROPPED = frozenset({"--resume", "--dry-run", "--parsable"})


def again(run: RunDir, *, here: Path, root: bool) -> str | None:
    """None where the folder does not tell. `here`: where it would be typed; `root`: name the root too."""
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        request = json.loads(run.request_json.read_bytes())
        said = request["submitter"]
        argv, cwd, prepare = list(said["argv"]), Path(said["cwd"]), list(request["prepare"])
        if argv[1] in _BEGINS:
            job_file = prepare[prepare.index("submit") + 1]
            words = resume_words(argv[1:], cwd=cwd, here=here, job_file=job_file, root=str(run.path.parent) if root else "")
            return shlex.join(["slurmtrain", *words])
    return None


def resume_words(argv: Sequence[str], *, cwd: Path, here: Path, job_file: str, root: str = "") -> list[str]:
    """The words from the command's name on; the job file absolute where it would be typed in another folder.

    >>> resume_words(["submit", "a.toml", "--set", "x=1", "--", "-v"], cwd=Path("/w"), here=Path("/"), job_file="/w/a.toml")
    ['submit', '/w/a.toml', '--set', 'x=1', '--resume', '--', '-v']
    """
    words = list(argv)
    cut = words.index("--") if "--" in words else len(words)
    own = [job_file if here != cwd and os.path.abspath(cwd / word) == job_file else word for word in _kept(words[:cut])]  # noqa: PTH100
    named = any(word == "--root" or word.startswith("--root=") for word in own)
    return [*own, *([] if named or not root else ["--root", root]), "--resume", *words[cut:]]


def _kept(words: Sequence[str]) -> Iterator[str]:
    skip = False
    for word in words:
        if not skip and word != "--prepare" and word not in _DROPPED:
            yield word
        skip = word == "--prepare"
