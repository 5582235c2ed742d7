"""The fake probes do what all Probes must."""

from __future__ import annotations

import pytest

from slurmtrain.preflight.probing import Member
from tests.fakes.clock import FakeClock
from tests.fakes.probes import FakeProbes
from tests.preflight.probes_conformance import ProbesConformance


class FakeStage:
    """See Stage."""

    def __init__(self) -> None:
        self.probes = FakeProbes(FakeClock(), ("n1", "n2", "n3"))

    def hang(self, member: Member) -> None:
        self.probes.hung.add(member[0])

    def resume(self, member: Member) -> None:
        self.probes.hung.discard(member[0])
        self.probes.lost.pop(member, None)

    def die(self, member: Member) -> None:
        self.probes.dead.add(member[0])

    def start(self, member: Member) -> None:
        self.probes.dead.discard(member[0])
        self.probes.lost.pop(member, None)


@pytest.fixture
def stage():
    return FakeStage()


class TestFakeProbes(ProbesConformance):
    """See ProbesConformance."""
