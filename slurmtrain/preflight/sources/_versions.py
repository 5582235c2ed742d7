"""`python -m slurmtrain.preflight.sources._versions NAME...`: the interpreter's version and its packages', as JSON. Nothing is imported."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable
from importlib import metadata, util
from typing import Any


def seen(names: Iterable[str]) -> dict[str, Any]:
    """`version`: of Python; `packages`: by name, `version` ("" where none is installed) and whether the module is `there`."""
    return {"version": platform.python_version(), "packages": {name: {"version": _version(name), "there": _there(name)} for name in names}}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _there(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


if __name__ == "__main__":
    sys.stdout.write(json.dumps(seen(sys.argv[1:])) + "\n")
