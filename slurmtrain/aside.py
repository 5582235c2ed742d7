"""Names beside a result while it is made, and what a killed maker left under such names.

    .NAME.HOST.PID.RANDOM.tmp    on its way to NAME
    .NAME.HOST.PID.RANDOM.old    was NAME until another took its place

No two makers share a name, whatever machines and containers they run on. Whoever makes NAME again removes what dead processes of the
same machine left; what belongs to other machines is left alone, for nobody here can tell whether it is alive.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def aside(out: Path, end: str = "tmp") -> Path:
    """A name of its own for each call, beside `out`."""
    return out.with_name(f".{out.name}.{platform.node()}.{os.getpid()}.{secrets.token_hex(4)}.{end}")


def sweep(out: Path) -> None:
    """Remove what killed makers of `out` left; what was `out` before them comes back where nothing took its place."""
    for path in sorted(_left_behind(out)):
        if path.name.endswith(".old") and not os.path.lexists(out):
            path.rename(out)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _left_behind(out: Path) -> Iterator[Path]:
    form = re.compile(rf"\.{re.escape(out.name)}\.{re.escape(platform.node())}\.(\d+)\.[0-9a-f]{{8}}\.(tmp|old)(\..*)?")
    with suppress(OSError):
        for entry in list(os.scandir(out.parent)):
            if (found := form.fullmatch(entry.name)) and not _lives(int(found[1])):
                yield out.parent / entry.name


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
