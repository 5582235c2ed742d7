"""What all Probes must do; the conductor with real processes and the fake both pass it.

A subclass gives the fixture `stage`: three members n1/0, n2/0, n3/0, and what may befall them. All are there before and after each test.
"""

from __future__ import annotations

import time
from typing import Protocol

import pytest

from slurmtrain.preflight.probing import Member, Order, Probes

A, B, C = ("n1", 0), ("n2", 0), ("n3", 0)
SIZE = 1 << 16
LATE_S = 1.5
"""Time-out of an order that one does not answer."""
LEEWAY_S = 4.0
"""Of a loaded machine."""


class Stage(Protocol):
    """Probes, and the power over their processes."""

    probes: Probes

    def hang(self, member: Member) -> None:
        """It does nothing any more."""

    def resume(self, member: Member) -> None:
        """It goes on."""

    def die(self, member: Member) -> None:
        """It is gone."""

    def start(self, member: Member) -> None:
        """A new process for one that is gone."""


class ProbesConformance:
    """See the module."""

    def test_members_are_in_the_order_of_nodes(self, stage: Stage):
        assert stage.probes.members() == (A, B, C)
        assert stage.probes.wait([C, A], 1.0) == (A, C)

    def test_each_does_the_same_and_equal_devices_have_equal_products(self, stage: Stage):
        replies = stage.probes.each([A, B, C], Order("matmul", sizes=(64,)), 30.0)
        assert list(replies) == [A, B, C]
        assert all(reply.ok and reply.figures["tflops"] > 0 for reply in replies.values()), replies
        assert len({reply.words["checksum"] for reply in replies.values()}) == 1
        assert all(reply.words["device"] for reply in replies.values())

    def test_a_file_is_written_and_read_and_gone(self, stage: Stage, tmp_path):
        reply = stage.probes.each([B], Order("storage", bytes=1 << 20, folder=str(tmp_path)), 30.0)[B]
        assert reply.ok, reply.said
        assert reply.figures["bytes"] == 1 << 20
        assert min(reply.figures["write_mb_s"], reply.figures["read_mb_s"]) > 0
        assert list(tmp_path.iterdir()) == []

    def test_the_bus_bandwidth_is_that_of_nccl_tests(self, stage: Stage):
        [replies] = stage.probes.groups([(A, B, C)], Order("reduce", sizes=(SIZE, 2 * SIZE), repeats=2), 30.0)
        assert list(replies) == [A, B, C]
        for reply in replies.values():
            assert reply.ok, reply.said
            for size in (SIZE, 2 * SIZE):
                assert reply.figures[f"busbw_gb_s@{size}"] == pytest.approx(4 / 3 * size / reply.figures[f"seconds@{size}"] / 1e9)
            assert reply.figures["busbw_gb_s"] == reply.figures[f"busbw_gb_s@{2 * SIZE}"]
            assert reply.words["transport"]

    def test_a_pair_measures_both_ways_and_both_know(self, stage: Stage):
        [replies] = stage.probes.groups([(C, A)], Order("pair", sizes=(SIZE,), repeats=2), 30.0)
        first, second = replies[C].figures, replies[A].figures
        assert first["send_gb_s"] == pytest.approx(second["receive_gb_s"])
        assert first["receive_gb_s"] == pytest.approx(second["send_gb_s"])
        assert first["send_gb_s@65536"] == first["send_gb_s"]
        assert min(*first.values(), *second.values()) > 0

    def test_what_was_used_is_known_afterwards(self, stage: Stage):
        stage.probes.groups([(A, B)], Order("reduce", sizes=(64,), repeats=1), 30.0)
        reply = stage.probes.each([A], Order("transport"), 30.0)[A]
        assert reply.ok
        assert reply.words["transport"]

    def test_disjoint_groups_have_a_reply_each(self, stage: Stage):
        replies = stage.probes.groups([(A, B), (C,)], Order("reduce", sizes=(64,), repeats=1), 30.0)
        assert [list(group) for group in replies] == [[A, B], [C]]
        assert all(reply.ok for group in replies for reply in group.values()), replies
        assert "busbw_gb_s" not in replies[1][C].figures, "one alone uses no bus"

    def test_who_never_came_fails_at_once_and_takes_its_group_along(self, stage: Stage):
        nobody = ("n3", 7)
        began = time.monotonic()
        assert stage.probes.wait([A, nobody], 0.1) == (A,)
        [replies] = stage.probes.groups([(A, nobody)], Order("reduce"), 30.0)
        assert not any(reply.ok for reply in replies.values())
        assert "n3" in replies[A].said
        assert not stage.probes.each([nobody], Order("matmul"), 30.0)[nobody].ok
        assert time.monotonic() - began < LEEWAY_S

    @pytest.mark.parametrize("hung", [B, A])
    def test_who_hangs_costs_its_group_one_time_out_and_is_there_again_when_it_answers(self, stage: Stage, hung: Member):
        stage.hang(hung)
        other = A if hung == B else B
        began = time.monotonic()
        replies, alone = stage.probes.groups([(A, B), (C,)], Order("reduce", sizes=(64,), repeats=1), LATE_S)
        assert time.monotonic() - began < LATE_S + LEEWAY_S
        assert replies[hung].said.startswith("no answer in")
        assert not replies[other].ok
        assert alone[C].ok, "another group does not notice"
        assert stage.probes.members() == tuple(member for member in (A, B, C) if member != hung)
        began = time.monotonic()
        [again] = stage.probes.groups([(other, C)], Order("reduce", sizes=(64,), repeats=1), 30.0)
        assert all(reply.ok for reply in again.values()), again
        [lost] = stage.probes.groups([(hung, C)], Order("reduce", sizes=(64,), repeats=1), 30.0)
        assert not lost[hung].ok
        assert time.monotonic() - began < LATE_S + LEEWAY_S, "what is lost is not waited for again"
        stage.resume(hung)
        assert stage.probes.wait([A, B, C], 60.0) == (A, B, C)
        [replies] = stage.probes.groups([(A, B, C)], Order("reduce", sizes=(64,), repeats=1), 30.0)
        assert all(reply.ok for reply in replies.values()), replies

    def test_who_dies_is_lost_and_the_others_go_on(self, stage: Stage):
        stage.die(B)
        began = time.monotonic()
        [replies] = stage.probes.groups([(A, B, C)], Order("reduce", sizes=(64,), repeats=1), LATE_S)
        assert not any(reply.ok for reply in replies.values())
        assert time.monotonic() - began < LATE_S + LEEWAY_S
        assert stage.probes.members() == (A, C)
        [replies] = stage.probes.groups([(A, C)], Order("reduce", sizes=(64,), repeats=1), 30.0)
        assert all(reply.ok for reply in replies.values()), replies
        stage.start(B)
        assert stage.probes.wait([A, B, C], 60.0) == (A, B, C)
