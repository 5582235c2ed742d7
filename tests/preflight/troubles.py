"""The rows of test_troubles.py, put together from the modules beside it (troubles_*.py), each with a good node's facts and its rows."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.preflight.row import Row

SITE: dict[str, Any] = {"name": "here", "device": "cuda", "node": {"gpus": 8, "gpu": "NVIDIA H100 SXM"}}
"""Of a site on which every check is made; a module may add keys of its own."""


FACTS: dict[str, dict[str, Any]] = {}
"""Of a good node, by source."""
ROWS: list[Row] = []


def _collect() -> None:
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if info.name.startswith("troubles_"):
            module = import_module(f"tests.preflight.{info.name}")
            FACTS.update(module.FACTS)
            ROWS.extend(module.ROWS)
            SITE.update(getattr(module, "SITE", {}))


_collect()
