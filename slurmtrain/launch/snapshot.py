"""The copy of the user's code that every attempt of a run executes: what git tracks, as it is in the working tree, and `--include`.

Without a git repository around the job file only `--include` is copied. With `--live` there is no copy: `code` is a link.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.errors import ConfigError, UserError, one_line
from slurmtrain.launch.request import CodeRecord
from slurmtrain.shell import RC_NOT_FOUND, Completed, Shell
from slurmtrain.units import format_size

LIMIT_BYTES = 256 << 20
"""Code is not data: a copy for every run must stay small."""
GIT_TIMEOUT_S = 60.0
_OF_THE_COPY = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})


@dataclass(frozen=True)
class Snapshot:
    """What to copy: pairs of (file, path in code/), or the folder to link to when `record.live`."""

    record: CodeRecord
    files: tuple[tuple[Path, str], ...]
    link: Path | None = None


def plan_snapshot(
    job_file: Path,
    *,
    include: Sequence[Path],
    live: bool,
    shell: Shell,
    env: Mapping[str, str],
    limit_bytes: int = LIMIT_BYTES,
) -> Snapshot:
    """Choose the files. Raises ConfigError for an include that is not there, UserError when the copy would be too large."""
    git = _Git(shell, {k: v for k, v in env.items() if not k.startswith("GIT_")} | {"LC_ALL": "C"})
    top = git.top(job_file.parent)
    commit, dirty = git.state(top) if top else (None, False)
    if live:
        source = top or job_file.parent
        return Snapshot(CodeRecord(source=str(source), commit=commit, dirty=dirty, live=True), (), link=source)
    chosen = {name: top / name for name in git.tracked(top)} if top else {}
    for path in include:
        chosen.update(_included(path, top))
    files = tuple((path, name) for name, path in sorted(chosen.items()))
    size = _check_size(files, limit_bytes)
    record = CodeRecord(
        source=str(top or ""), commit=commit, dirty=dirty, included=tuple(str(p) for p in include), files=len(files), bytes=size
    )
    return Snapshot(record, files)


def copy_snapshot(snapshot: Snapshot, target: Path) -> None:
    """Make the folder `target` (the run's code/) of it; links stay links. Raises OSError."""
    if snapshot.link is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(snapshot.link, target_is_directory=True)
        return
    target.mkdir(parents=True, exist_ok=True)
    for path, name in snapshot.files:
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            copy.symlink_to(_link_target(path, name))
        else:
            _copy(path, copy)


def _copy(path: Path, copy: Path) -> None:
    """Raises OSError, with the copy's name where it is the copy that could not be written: shutil names the file that was read."""
    try:
        shutil.copy2(path, copy)
    except OSError as error:
        if error.errno in _OF_THE_COPY:
            raise OSError(error.errno, error.strerror, str(copy)) from None
        raise


def _link_target(path: Path, name: str) -> str:
    """Where the copy of a link points: as the original inside of what is copied, absolute for what lies outside."""
    target = str(path.readlink())
    inside = os.path.normpath(os.path.join(os.path.dirname(name), target))  # noqa: PTH118, PTH120 pure text: nothing is followed
    return target if not inside.startswith("..") else os.path.join(path.parent, target)  # noqa: PTH118


@dataclass(frozen=True)
class _Git:
    shell: Shell
    env: Mapping[str, str]

    def top(self, folder: Path) -> Path | None:
        """The repository around a folder; None where there is none, or no git."""
        said = self._ask(folder, "rev-parse", "--show-toplevel")
        return Path(said.rstrip("\n")) if said else None

    def state(self, top: Path) -> tuple[str | None, bool]:
        """The commit (None before the first) and whether tracked files differ from it."""
        commit = self._run(top, "rev-parse", "--verify", "--quiet", "HEAD")
        changed = self._ask(top, "status", "--porcelain", "--untracked-files=no")
        return (commit.out.strip() or None if commit.ok else None), bool(changed)

    def tracked(self, top: Path) -> list[str]:
        """Paths below `top` that git tracks and that are there, those of submodules too."""
        said = self._ask(top, "ls-files", "-z", "--cached", "--recurse-submodules") or ""
        return [name for name in said.split("\0") if name and _is_file(top / name)]

    def _run(self, folder: Path, *words: str) -> Completed:
        return self.shell.run(["git", "-C", str(folder), *words], timeout_s=GIT_TIMEOUT_S, env=self.env)

    def _ask(self, folder: Path, *words: str) -> str | None:
        done = self._run(folder, *words)
        if done.ok:
            return done.out
        if done.rc == RC_NOT_FOUND or "not a git repository" in done.err:
            return None
        said = (done.err.strip().splitlines() or ["no answer"])[0]
        raise UserError(f"{folder}: git cannot list the code to copy: {one_line(said)}: mend that, or give --live")


def _is_file(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _included(path: Path, top: Path | None) -> dict[str, Path]:
    """Files of one --include by their path in code/: as in the repository where it lies in one, else by its last name."""
    if not path.exists():
        raise ConfigError("no such file or folder", where="--include", key=str(path))
    path = Path(os.path.abspath(path))  # noqa: PTH100 links stay as they are
    base = top if top is not None and path.is_relative_to(top) and path != top else path.parent
    if not path.is_dir():
        return {str(path.relative_to(base)): path}
    found: dict[str, Path] = {}
    for folder, names, files in os.walk(path):
        names[:] = sorted(name for name in names if name not in {".git", "__pycache__"})
        for name in files + [n for n in names if (Path(folder) / n).is_symlink()]:
            inner = Path(folder) / name
            if _is_file(inner):
                found[str(inner.relative_to(base))] = inner
    return found


def _check_size(files: Sequence[tuple[Path, str]], limit_bytes: int) -> int:
    sizes = sorted(((path.lstat().st_size, name) for path, name in files), reverse=True)
    total = sum(size for size, _ in sizes)
    if total > limit_bytes:
        largest = ", ".join(f"{name} ({format_size(size)})" for size, name in sizes[:3])
        problem = f"the code to copy is {format_size(total)}, more than {format_size(limit_bytes)}; the largest: {largest}"
        raise UserError(f"{problem}: take data out of git, or give --live to run the code where it is")
    return total
