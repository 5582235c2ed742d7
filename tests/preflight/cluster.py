"""A pretended cluster for tests of a full preflight: probes, a site, and the one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurmtrain.config.site import SiteConfig
from slurmtrain.preflight.baseline import Baseline
from slurmtrain.preflight.full import measure
from slurmtrain.preflight.ledger import FullResult
from slurmtrain.preflight.request import Request
from tests.fakes.clock import FakeClock
from tests.fakes.probes import FakeProbes


class Cluster:
    """`n` nodes, n0 ...; `tasks`: devices of each; `site`: changes to the site's keys; what is wrong is set at `probes`."""

    def __init__(self, n: int, tasks: int = 1, *, device: str = "cuda", preflight: Any = None, noise: float = 0.03, **site: Any) -> None:
        self.clock = FakeClock()
        self.nodes = [f"n{i}" for i in range(n)]
        self.probes = FakeProbes(self.clock, self.nodes, tasks, noise=noise)
        fabric = {"kind": "infiniband", "nics_per_node": 2, "nic_gbps": 400} if device == "cuda" else {"kind": "loopback"}
        base = {"name": "test", "device": device, "node": {"gpus": tasks}, "fabric": fabric, "preflight": preflight or {}}
        self.site = SiteConfig.model_validate({**base, **site})
        self.said: list[str] = []

    def request(self, **more: Any) -> Request:
        words = ("/answers", "word", "/nonce", ("/runs/checkpoints",))
        return Request(self.clock.time(), *words, self.site, **{"gpus_per_node": self.probes.tasks, "health": True, **more})

    def measure(self, baseline: Baseline | None = None, nodes: Sequence[str] = (), request: Any = None, **more: Any) -> FullResult:
        wanted = request or self.request()
        return measure(self.probes, nodes or self.nodes, wanted, baseline or Baseline(), self.clock, self.said.append, **more)

    def rounds(self, do: str) -> list[list[tuple[str, ...]]]:
        """Groups of nodes that were asked to do something, order by order; rails as one."""
        return [list(dict.fromkeys(tuple(node for node, _ in group) for group in groups)) for one, groups in self.probes.asked if one == do]
