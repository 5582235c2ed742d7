"""When an agent stays, leaves, or clears its node first."""

from __future__ import annotations

import pytest

from slurmtrain.resilience.presence import ORPHAN_S, PING_S, SILENCE_S, Presence, fate


@pytest.mark.parametrize(
    ("seen", "word"),
    [
        (Presence(now=100, heard_at=100), "stay"),
        (Presence(now=100, heard_at=61), "stay"),
        (Presence(now=100, heard_at=60), "clear"),
        (Presence(now=100, heard_at=99, ended_at=81), "stay"),
        (Presence(now=100, heard_at=99, ended_at=80), "clear"),
        (Presence(now=100, heard_at=60, ended_at=99), "clear"),
        (Presence(now=100, heard_at=60, replaced_at=95), "leave"),
        (Presence(now=100, heard_at=60, replaced_at=96), "stay"),
        (Presence(now=100, heard_at=99, ended_at=80, replaced_at=99), "stay"),
        (Presence(now=100, heard_at=100, replaced_at=90), "leave"),
        (Presence(now=100, heard_at=100, told=True), "leave"),
        (Presence(now=100, heard_at=0, told=True), "leave"),
        (Presence(now=100, heard_at=99, term=True), "stay"),
        (Presence(now=100, heard_at=99, ended_at=99, term=True), "leave"),
        (Presence(now=100, heard_at=60, term=True), "leave"),
    ],
)
def test_the_table(seen, word):
    assert fate(seen, silence_s=40, orphan_s=20) == word


def test_a_partition_of_20_seconds_is_survived_and_a_supervisor_that_is_gone_is_noticed_within_a_minute():
    assert 20 + 2 * PING_S < SILENCE_S < 50
    assert ORPHAN_S < SILENCE_S
