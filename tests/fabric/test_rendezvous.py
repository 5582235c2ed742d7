"""Which interface and address rank 0 offers: the site's or none; never a resolved host name."""

from __future__ import annotations

import socket

import pytest

from slurmtrain.errors import ConfigError
from slurmtrain.fabric.rendezvous import Endpoint, choose_endpoint, default_interface, local_interfaces, set_socket_interfaces

NODE = {"lo": ["127.0.0.1"], "eno1": ["10.1.0.7"], "ib0": ["172.16.0.7"], "docker0": ["172.17.0.1"], "ib1": []}

# /proc/net/route of a node with two uplinks: the one of the lower metric counts.
ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eno2\t00000000\t0100000A\t0003\t0\t0\t200\t00000000\t0\t0\t0
eno1\t00000000\t0100010A\t0003\t0\t0\t100\t00000000\t0\t0\t0
ib0\t000010AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""


@pytest.mark.parametrize(
    ("wanted", "one_node", "default", "expected"),
    [
        ("ib0", False, "eno1", Endpoint("ib0", "172.16.0.7")),
        ("ib0", True, "eno1", Endpoint("ib0", "172.16.0.7")),
        (None, True, "eno1", Endpoint("lo", "127.0.0.1")),
        (None, False, "eno1", Endpoint("eno1", "10.1.0.7")),
        (None, False, None, Endpoint("eno1", "10.1.0.7")),
        (None, False, "gone0", Endpoint("eno1", "10.1.0.7")),
    ],
)
def test_the_sites_interface_else_loopback_else_the_default_route(wanted, one_node, default, expected):
    assert choose_endpoint(wanted, NODE, one_node=one_node, default=default) == expected


@pytest.mark.parametrize(
    ("wanted", "interfaces", "words"),
    [
        (
            "ib9",
            NODE,
            r"'ib9': does not exist on .*docker0 \(172.17.0.1\), eno1 \(10.1.0.7\), ib0 \(172.16.0.7\), lo",
        ),
        ("ib1", NODE, "'ib1': has no address on "),
        (None, {"lo": ["127.0.0.1"]}, r"is not given and no interface .* there are: lo \(127.0.0.1\)"),
    ],
)
def test_an_interface_that_cannot_serve_is_refused_with_those_that_exist(wanted, interfaces, words):
    with pytest.raises(ConfigError, match=words):
        choose_endpoint(wanted, interfaces, one_node=False, default=None)


def test_the_default_route_is_that_of_the_lowest_metric():
    assert default_interface(ROUTES) == "eno1"
    assert default_interface(ROUTES.splitlines()[0]) is None
    assert default_interface("") is None


def test_this_machines_interfaces_can_be_bound():
    interfaces = local_interfaces()
    assert "127.0.0.1" in {a for addresses in interfaces.values() for a in addresses}
    for addresses in interfaces.values():
        for address in addresses:
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
                probe.bind((address, 0))


def test_what_a_person_set_is_kept():
    environ = {"NCCL_SOCKET_IFNAME": "=ib7"}
    set_socket_interfaces(environ, "ib0", Endpoint("ib0", "172.16.0.7"))
    assert environ == {"NCCL_SOCKET_IFNAME": "=ib7", "GLOO_SOCKET_IFNAME": "ib0"}
    environ = {}
    set_socket_interfaces(environ, None, Endpoint("eno1", "10.1.0.7"))
    assert environ == {"GLOO_SOCKET_IFNAME": "eno1"}
