"""Messages between a rank and its writer."""

from __future__ import annotations

import fcntl
import os
import resource
import socket

import pytest

from slurmtrain.checkpoint.wire import Wire, pair


@pytest.fixture
def two():
    ours, theirs = pair()
    other = Wire(theirs)
    yield ours, other
    ours.close()
    other.close()


def test_values_and_descriptors_in_their_order(two):
    one, other = two
    reading, writing = os.pipe()
    one.send({"a": b"x" * 5000}, [writing])
    one.send([1, 2])
    value, (fd,) = other.receive()
    assert value == {"a": b"x" * 5000}
    os.write(fd, b"here")
    assert os.read(reading, 9) == b"here"
    assert other.receive(5.0) == ([1, 2], [])
    assert other.receive(0.0) is None
    for one_fd in (reading, writing, fd):
        os.close(one_fd)


def test_the_other_end_that_is_gone(two):
    one, other = two
    one.send(1)
    one.close()
    assert other.receive() == (1, [])
    with pytest.raises(EOFError):
        other.receive()


def test_descriptors_beyond_a_thousand():
    """A rank of a large world has a thousand connections before it makes its first save. Broken: select takes none above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1300:
        pytest.skip("no process may have so many files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1300), hard))
    try:
        ours, theirs = socket.socketpair()
        one, other = Wire(socket.socket(fileno=fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 1200))), Wire(theirs)
        ours.close()
        other.send("word")
        assert one.receive(5.0) == ("word", [])
        assert one.receive(0.01) is None
        one.close()
        other.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
