"""What a job brings to the programs of its ranks, and a node that is looked at by itself does not have."""

from __future__ import annotations

from slurmtrain.preflight.request import Request


def modules_loaded(request: Request) -> bool:
    """Whether the site's modules are there, as far as it has any: a node by itself (no nonce) is outside a job."""
    return bool(request.nonce) or not request.site.environment.modules
