"""The conductor against members made of sockets: many at once, strangers, the dead, those that start anew, and broken words."""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.config.site import SiteConfig
from slurmtrain.preflight import conductor as module
from slurmtrain.preflight.conductor import Conductor, own_limit_s, stuck_s
from slurmtrain.preflight.lines import encode
from slurmtrain.preflight.probing import Order, Reply, probe_command, probe_environment

MATMUL, REDUCE = Order("matmul"), Order("reduce", sizes=(64,))
OK = Reply(ok=True, figures={"tflops": 1.0}).to_json()
Act = Callable[["Member", dict], None]


def good(member: Member, message: dict) -> None:
    """Offers a store where it is the first, and answers."""
    if message["group"] and message["group"]["rank"] == 0:
        member.say({"id": message["id"], "host": "h", "port": 7})
    member.say({"id": message["id"], "reply": OK, "restarts": False})


class Member:
    """One socket, and what it does with an order."""

    def __init__(self, made: Conductor, node: str, local: int = 0, act: Act = good, **hello) -> None:
        self.sock = socket.create_connection((made.address, made.port))
        self.act, self.orders, self.got = act, [], b""
        self.say({"hello": {"token": made.token, "node": node, "local": local, "problem": "", **hello}})

    def say(self, message: dict) -> None:
        self.sock.sendall(encode(message))


class Crowd:
    """All members, served by one thread."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.wake, self.woken = socket.socketpair()
        self.selector.register(self.woken, selectors.EVENT_READ, None)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def add(self, member: Member) -> Member:
        self.selector.register(member.sock, selectors.EVENT_READ, member)
        self.wake.send(b"x")
        return member

    def run(self) -> None:
        while True:
            for key, _ in self.selector.select():
                if key.data is None:
                    if b"e" in self.woken.recv(4096):
                        return
                else:
                    self.serve(key.data)

    def serve(self, member: Member) -> None:
        part = b""
        with suppress(OSError):
            part = member.sock.recv(1 << 16)
        if not part:
            self.selector.unregister(member.sock)
            member.sock.close()
        *whole, member.got = (member.got + part).split(b"\n")
        for line in whole:
            message = json.loads(line)
            member.orders.append(message)
            member.act(member, message)

    def end(self) -> None:
        self.wake.send(b"e")
        self.thread.join(10)
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()
        self.wake.close()


@pytest.fixture
def crowd():
    made = Crowd()
    yield made
    made.end()


@pytest.fixture
def made():
    conductor = Conductor(["n2", "n1", "n3"], 2, SystemClock(), address="127.0.0.1")
    yield conductor
    conductor.close()


def test_members_are_known_when_they_have_said_hello_in_the_order_of_the_nodes(made, crowd):
    for node, local in (("n1", 1), ("n1", 0), ("n2", 0)):
        crowd.add(Member(made, node, local))
    wanted = [("n1", 0), ("n1", 1), ("n2", 0)]
    assert made.wait(wanted, 10.0) == made.members() == (("n2", 0), ("n1", 0), ("n1", 1))
    assert made.wait([*wanted, ("n3", 0)], 0.05) == (("n2", 0), ("n1", 0), ("n1", 1))


@pytest.mark.parametrize(
    "words",
    [
        b'{"hello": {"token": "guessed", "node": "n1", "local": 0}}\n',
        b'{"hello": {"token": "TOKEN", "node": "elsewhere", "local": 0}}\n',
        b'{"hello": {"node": "n1"}}\n',
        b'{"id": 1, "reply": {}}\n',
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b"\xff\xfe\n",
    ],
)
def test_strangers_are_sent_away_and_nobody_is_disturbed(made, crowd, words):
    crowd.add(Member(made, "n1"))
    with socket.create_connection((made.address, made.port), timeout=10) as stranger:
        stranger.sendall(words.replace(b"TOKEN", made.token.encode()))
        assert made.wait([("n1", 0)], 10.0)
        assert made.each([("n1", 0)], MATMUL, 10.0)[("n1", 0)].ok
        made.wait([("n2", 0)], 0.05)
        assert stranger.recv(1) == b""
    assert made.members() == (("n1", 0),)


def test_the_others_of_a_group_are_told_where_the_store_is(made, crowd):
    members = {node: crowd.add(Member(made, node)) for node in ("n1", "n2", "n3")}
    group = (("n3", 0), ("n1", 0), ("n2", 0))
    made.wait(group, 10.0)
    [replies] = made.groups([group], REDUCE, 10.0)
    assert all(reply == Reply.from_json(OK) for reply in replies.values())
    asked = {node: member.orders[0]["group"] for node, member in members.items()}
    assert asked["n3"] == {"rank": 0, "size": 3, "names": ["n3/0", "n1/0", "n2/0"], "host": "", "port": 0}
    assert asked["n1"] == {"rank": 1, "size": 3, "names": [], "host": "h", "port": 7}
    assert asked["n2"]["rank"] == 2
    assert 0 < members["n1"].orders[0]["limit_s"] <= own_limit_s(10.0)
    assert members["n1"].orders[0]["order"] == REDUCE.to_json()


def test_a_member_that_says_nothing_costs_one_time_out_and_comes_back_with_its_late_answer(made, crowd):
    kept: list[dict] = []
    silent = crowd.add(Member(made, "n1", act=lambda member, message: kept.append(message)))
    crowd.add(Member(made, "n2"))
    both = [("n1", 0), ("n2", 0)]
    made.wait(both, 10.0)
    began = time.monotonic()
    replies = made.each(both, MATMUL, 0.3)
    assert 0.3 <= time.monotonic() - began < 3
    assert (replies[both[0]].said, replies[both[1]].ok) == ("no answer in 0.3 s", True)
    assert made.members() == (("n2", 0),)
    assert made.each([("n1", 0)], MATMUL, 60.0)[("n1", 0)].said == "no answer in 0.3 s to matmul", "at once"
    silent.act = good
    silent.say({"id": kept[0]["id"], "reply": OK, "restarts": False})
    assert made.wait(both, 10.0) == (("n2", 0), ("n1", 0))
    assert made.each(both, MATMUL, 10.0)[("n1", 0)].ok


def test_where_the_first_opens_no_store_the_others_are_not_lost(made, crowd):
    crowd.add(Member(made, "n1", act=lambda member, message: None))
    other = crowd.add(Member(made, "n2"))
    group = (("n1", 0), ("n2", 0))
    made.wait(group, 10.0)
    [replies] = made.groups([group], REDUCE, 0.2)
    assert replies[("n2", 0)].said == "n1/0 opened no store: no answer in 0.2 s"
    assert other.orders == []
    assert made.members() == (("n2", 0),)


def test_a_process_that_is_gone_is_said_at_once(made, crowd):
    crowd.add(Member(made, "n1", act=lambda member, message: member.sock.shutdown(socket.SHUT_RDWR)))
    made.wait([("n1", 0)], 10.0)
    began = time.monotonic()
    assert made.each([("n1", 0)], MATMUL, 60.0)[("n1", 0)].said == "its process is gone"
    assert time.monotonic() - began < 10
    assert made.members() == ()
    crowd.add(Member(made, "n1"))
    assert made.wait([("n1", 0)], 10.0), "another is welcome in its place"
    assert made.each([("n1", 0)], MATMUL, 10.0)[("n1", 0)].ok


def test_one_that_is_gone_before_it_could_be_told_is_told_nothing(made, crowd):
    """Between the order to the first of its group and the offer of the store."""
    lost = crowd.add(Member(made, "n2"))

    def slow(member: Member, message: dict) -> None:
        lost.sock.shutdown(socket.SHUT_RDWR)
        threading.Timer(0.3, lambda: good(member, message)).start()

    crowd.add(Member(made, "n1", act=slow))
    other = crowd.add(Member(made, "n3"))
    group = (("n1", 0), ("n2", 0), ("n3", 0))
    made.wait(group, 10.0)
    [replies] = made.groups([group], REDUCE, 10.0)
    assert [reply.ok for reply in replies.values()] == [True, False, True]
    assert replies[("n2", 0)].said == "its process is gone"
    assert other.orders[0]["group"]["rank"] == 2


def test_one_that_starts_anew_is_awaited_by_the_next_order(made, crowd):
    def anew(member: Member, message: dict) -> None:
        member.say({"id": message["id"], "reply": Reply(ok=False, said="hangs").to_json(), "restarts": True})
        member.sock.shutdown(socket.SHUT_RDWR)
        threading.Timer(0.3, lambda: crowd.add(Member(made, "n1"))).start()

    crowd.add(Member(made, "n1", act=anew))
    made.wait([("n1", 0)], 10.0)
    assert made.each([("n1", 0)], MATMUL, 10.0)[("n1", 0)].said == "hangs"
    assert made.members() == ()
    assert made.each([("n1", 0)], MATMUL, 10.0)[("n1", 0)].ok


def test_one_that_does_not_come_back_is_lost(made, crowd, monkeypatch):
    monkeypatch.setattr(module, "RETURN_S", 1.0)

    def leave(member: Member, message: dict) -> None:
        member.say({"id": message["id"], "reply": Reply(ok=False, said="hangs").to_json(), "restarts": True})
        member.sock.shutdown(socket.SHUT_RDWR)

    crowd.add(Member(made, "n1", act=leave))
    made.wait([("n1", 0)], 10.0)
    made.each([("n1", 0)], MATMUL, 10.0)
    began = time.monotonic()
    assert [made.each([("n1", 0)], MATMUL, 60.0)[("n1", 0)].ok for _ in range(3)] == [False] * 3
    assert time.monotonic() - began < 2.5, "it is awaited once"


def test_what_a_member_could_not_begin_with_is_its_reply(made, crowd):
    crowd.add(Member(made, "n1", problem="no GPU can be used on n1"))
    assert made.wait([("n1", 0)], 0.2) == ()
    assert made.each([("n1", 0)], MATMUL, 60.0)[("n1", 0)].said == "no GPU can be used on n1"


def test_words_that_make_no_sense_are_the_end_of_a_member(made, crowd):
    crowd.add(Member(made, "n1", act=lambda member, message: member.say({"id": message["id"], "reply": {"ok": 1}})))
    made.wait([("n1", 0)], 10.0)
    assert made.each([("n1", 0)], MATMUL, 60.0)[("n1", 0)].said == "its process is gone"


def test_four_hundred_members_are_told_at_once(crowd):
    """In pairs, then each: no member waits for another's answer."""
    nodes = [f"n{i}" for i in range(400)]
    made = Conductor(nodes, 1, SystemClock(), address="127.0.0.1")
    try:
        asked = threading.Semaphore(0)

        def wait_for_all(member: Member, message: dict) -> None:
            asked.release()
            held.append((member, message))
            if len(held) == len(nodes):
                for one, order in held:
                    good(one, order)

        held: list[tuple[Member, dict]] = []
        for node in nodes:
            crowd.add(Member(made, node, act=wait_for_all))
        members = [(node, 0) for node in nodes]
        assert len(made.wait(members, 30.0)) == 400
        began = time.monotonic()
        replies = made.each(members, MATMUL, 30.0)
        assert all(reply.ok for reply in replies.values())
        for key in list(crowd.selector.get_map().values()):
            if key.data is not None:
                key.data.act = good
        pairs = list(zip(members[::2], members[1::2], strict=True))
        assert all(reply.ok for group in made.groups(pairs, REDUCE, 30.0) for reply in group.values())
        assert time.monotonic() - began < 10
    finally:
        made.close()


def test_a_member_has_time_to_answer_before_the_conductor_gives_it_up():
    for timeout_s in (1.0, 5.0, 20.0, 60.0, 600.0):
        assert 0 < own_limit_s(timeout_s) < timeout_s
        assert own_limit_s(timeout_s) + 3.0 <= stuck_s(timeout_s)
        assert timeout_s < 20 or stuck_s(timeout_s) < timeout_s


def test_a_probe_is_told_what_it_needs():
    site = SiteConfig.model_validate({"name": "x", "device": "cpu", "node": {"gpus": 2}, "fabric": {"rendezvous_interface": "ib0"}})
    assert probe_environment(site, "word", 2) == {
        "SLURMTRAIN_PROBE_TOKEN": "word",
        "SLURMTRAIN_PROBE_DEVICE": "cpu",
        "SLURMTRAIN_PROBE_TASKS": "2",
        "SLURMTRAIN_PROBE_INTERFACE": "ib0",
    }
    assert probe_command("/p", "fd00::1", 7) == ("/p", "-m", "slurmtrain.runtime.probe", "[fd00::1]:7")
