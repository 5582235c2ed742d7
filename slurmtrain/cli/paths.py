"""Paths that people type."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class UserPath(click.Path):
    """A path; `~` is filled in also where the shell leaves it, as in --out=~/tokens. An empty word, which would mean this folder, is
    refused.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("an empty word is no path: is a variable not set?", param, ctx)
        return super().convert(os.path.expanduser(value), param, ctx)  # noqa: PTH111 before it is a Path
