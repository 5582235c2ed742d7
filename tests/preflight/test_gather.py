"""Sources side by side: one that hangs, dies or is at a loss costs itself alone."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import psutil
import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.config.site import SiteConfig
from slurmtrain.preflight.gather import gather
from slurmtrain.preflight.machine import CannotTellError, Machine
from slurmtrain.preflight.parts import Source
from slurmtrain.preflight.request import Request, read_request
from slurmtrain.shell import SystemShell

SITE = SiteConfig.model_validate({"name": "here", "device": "cpu", "node": {"gpus": 1}})
REQUEST = Request(1.0, "/answers", "word", "/nonce", ("/a", "/b"), SITE, health=True, only=("x",), environment={"A": "b"})
MACHINE = Machine(SystemShell(), dict(os.environ), SystemClock())


def source(name: str, look, **more) -> Source:
    return Source(name, lambda machine, request: look(), late="have it rebooted", **more)


def hang():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    signal.pause()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def cannot():
    raise CannotTellError("no such program: nvidia-smi", "install the driver")


def no_child_is_left(before: set[int], limit_s: float = 10.0) -> bool:
    """Those that were killed are gone as soon as the kernel comes to it; children that other tests have are theirs."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        mine = {child.pid for child in psutil.Process().children()} - before
        for pid in mine:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not mine:
            return True
        time.sleep(0.01)
    return False


def test_all_look_at_once_and_each_has_its_own_end():
    began, before = time.monotonic(), {child.pid for child in psutil.Process().children()}
    found = gather(
        [
            source("good", lambda: {"x": [1, 2.5, "text", None]}),
            source("large", lambda: {"text": "x" * (1 << 20)}),
            source("hung", hang, timeout_s=1.0),
            source("hung too", hang, timeout_s=1.0),
            source("dead", die),
            source("at a loss", cannot),
            source("broken", lambda: {}["nothing"]),
        ],
        MACHINE,
        REQUEST,
        clock=SystemClock(),
    )
    assert found.facts["good"] == {"x": [1, 2.5, "text", None]}
    assert len(found.facts["large"]["text"]) == 1 << 20
    assert found.unknown["hung"] == ("hung: no answer in time", "have it rebooted")
    assert "died" in found.unknown["dead"][0]
    assert found.unknown["at a loss"] == ("no such program: nvidia-smi", "install the driver")
    assert "KeyError" in found.unknown["broken"][0]
    assert 1.0 <= time.monotonic() - began < 1.9, "two that hang cost one limit"
    assert no_child_is_left(before)


def test_one_limit_may_be_set_for_all():
    found = gather([source("hung", hang, timeout_s=60.0)], MACHINE, REQUEST, clock=SystemClock(), limit_s=0.2)
    assert list(found.unknown) == ["hung"]


def test_a_request_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "request.json"
    path.write_bytes(REQUEST.to_json())
    assert read_request(path) == REQUEST


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v": 1, "t": 1.0, "site": {"name": 3}}'])
def test_a_damaged_request_is_one_line_with_its_path(tmp_path, text):
    path = tmp_path / "request.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"request\.json: not a request") as caught:
        read_request(path)
    assert "\n" not in str(caught.value)
