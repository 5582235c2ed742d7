"""All sources and checks: one for each file in `sources/` and `checks/`."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from types import ModuleType

from slurmtrain.preflight import checks, sources
from slurmtrain.preflight.parts import Check, Source
from slurmtrain.preflight.request import Request


@cache
def all_sources() -> tuple[Source, ...]:
    return tuple(module.SOURCE for module in _modules(sources))


@cache
def all_checks() -> tuple[Check, ...]:
    return tuple(module.CHECK for module in _modules(checks))


def checks_for(request: Request) -> tuple[Check, ...]:
    """The checks that this request wants: those that make sense at its site, less those that are skipped; none without `health`."""
    if not request.health:
        return ()
    skipped = set(request.site.preflight.skip)
    return tuple(
        check
        for check in all_checks()
        if check.wanted(request) and check.name not in skipped and (not request.only or check.name in request.only)
    )


def sources_for(request: Request) -> tuple[Source, ...]:
    """The sources that those checks need."""
    needed = {check.source for check in checks_for(request)}
    return tuple(source for source in all_sources() if source.name in needed and source.wanted(request))


def _modules(package: ModuleType) -> list[ModuleType]:
    """Modules of a package by name; those that begin with an underscore serve the others."""
    names = sorted(info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_"))
    return [import_module(f"{package.__name__}.{name}") for name in names]
