"""What every node is asked: one file that the conductor of a preflight writes and each node reads, the same for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from slurmtrain.atomic import to_json
from slurmtrain.config.site import SiteConfig

REQUEST_VERSION = 1
RANKS_PACKAGES = ("torch", "mpi4py", "numpy", "h5py")
"""What our own trainer needs of the ranks' interpreter."""


@dataclass(frozen=True)
class Request:
    """What the nodes are to look at, and what they should find.

    `t`: of the asking, seconds since the epoch by the conductor's clock; `answers`: folder for NODE.json; `nonce`: a random word, and
    `nonce_file` the file that holds it, by which a node sees whether it reads the conductor's file system; `shared`: folders that every
    node writes into; `code`: folder that the ranks run in; `python`: their interpreter; `site`: as in site.json; `gpus_per_node`: GPUs
    of a node that the job has; `need_bytes`, `need_files`: of the next checkpoint (0: not known); `local_bytes`: that checkpoints on a
    node's own disk take at most; `packages`: that the ranks' interpreter must have; `health`: whether the checks of the hardware and the
    system are made, or the node alone answers; `only`: names of checks, none: all; `environment`: what the job itself sets for its ranks.
    """

    t: float
    answers: str
    nonce: str
    nonce_file: str
    shared: tuple[str, ...]
    site: SiteConfig
    code: str = ""
    python: str = ""
    gpus_per_node: int = 0
    need_bytes: int = 0
    need_files: int = 0
    local_bytes: int = 0
    packages: tuple[str, ...] = RANKS_PACKAGES
    health: bool = False
    only: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def on_gpus(self) -> bool:
        return self.site.device == "cuda"

    @property
    def probes_per_node(self) -> int:
        """Processes that measure: one for each GPU that the job has there, on CPUs one."""
        return max(1, self.gpus_per_node) if self.on_gpus else 1

    def to_json(self) -> bytes:
        raw = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "site"}
        return to_json({"v": REQUEST_VERSION, **raw, "site": self.site.model_dump(mode="json", exclude_none=True)})


def read_request(path: Path) -> Request:
    """Raises OSError, and ValueError with one line for a file that is damaged."""
    try:
        raw: dict[str, Any] = json.loads(path.read_bytes())
        known = {one.name for one in fields(Request)}
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items() if name in known}
        values["site"] = SiteConfig.model_validate_json(json.dumps(raw["site"]))
        return Request(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: not a request of this release: {' '.join(str(error).split())[:200]}") from None
