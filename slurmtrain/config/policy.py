"""The administrator's policy: keys that are forced. Read last; whoever says otherwise is refused, by the name of the file.

    [lock]
    "slurm.partition" = "batch"        # a job's key
    "site.slurm.exclusive" = true      # a site's key

The file counts only when it belongs to root and nobody else may write it.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from slurmtrain.config.draft import POLICY, Draft
from slurmtrain.config.faults import config_error
from slurmtrain.config.job import JobConfig
from slurmtrain.config.keys import holds, meant, near_misses, section_at
from slurmtrain.config.site import SiteConfig
from slurmtrain.config.tomlfile import read_toml
from slurmtrain.errors import ConfigError

POLICY_PATH = Path("/etc/slurmtrain/policy.toml")
OWNER_UID = 0
"""Who must own the file: root."""
_SITE = "site."


def apply_policy(draft: Draft, model: type[BaseModel], path: Path) -> None:
    """Force the locked keys of this model (JobConfig or SiteConfig). Raises ConfigError."""
    for full, value in read_locks(path).items():
        if full.startswith(_SITE) != (model is SiteConfig):
            continue
        key = full.removeprefix(_SITE)
        said = draft.get(key)
        if said is not None and said != value:
            raise ConfigError(f"the policy {path} allows {value!r} alone", where=draft.where(key), key=key, value=said)
        draft.put(key, value, POLICY, str(path))


def read_locks(path: Path) -> dict[str, Any]:
    """Locked keys and their values; none where there is no file. Raises ConfigError for a file that cannot be trusted or is wrong."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read this policy: {error.strerror}", where=str(path)) from None
    if status.st_uid != OWNER_UID or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"is not to be trusted: chown root and chmod 644 {path}", where=str(path))
    tables = read_toml(path, "policy file")
    for key in tables:
        if key != "lock":
            raise config_error(f"unknown key '{key}'; a policy has one table: [lock]", where=str(path), key=key, said=False)
    if not isinstance(tables.get("lock", {}), dict):
        raise ConfigError("must be a table: [lock]", where=str(path), key="lock", value=tables["lock"])
    locks = dict(_flat(tables.get("lock", {})))
    for key in locks:
        _check(key, str(path))
    return locks


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys may be written in quotes ("slurm.partition") or as TOML's own dotted keys."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _check(key: str, where: str) -> None:
    site = key.startswith(_SITE)
    model: type[BaseModel] = SiteConfig if site else JobConfig
    inner = key.removeprefix(_SITE)
    if section_at(model, inner):
        raise config_error(f"{key} is a table: lock single keys of it", where=where, key=key, said=False)
    if holds(model, inner) is None:
        near = tuple(f"{_SITE}{k}" if site else k for k in near_misses(inner, model))
        raise config_error(f"unknown key '{key}'{meant(near)}", where=where, key=key, said=False)
