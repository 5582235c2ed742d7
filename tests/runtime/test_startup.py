"""What a rank's start took: stages that add up to the time since its process was born."""

from __future__ import annotations

import subprocess
import sys

from slurmtrain.runtime.startup import Startup, process_age_s
from tests.fakes.clock import FakeClock

PROBE = """
import time
begin = time.time()
time.sleep(0.3)
from slurmtrain.runtime.startup import process_age_s
print(process_age_s(), time.time() - begin)
"""


def test_stages_come_in_pieces_and_add_up():
    clock = FakeClock()
    watch = Startup(clock, age_s=2.0)
    for stage, took in (("python", 1.0), ("mpi", 0.5), ("python", 3.0), ("group", 0.25), ("build", 4.0)):
        clock.advance(took)
        watch.passed(stage)
    watch.was("load", "build", 1.5)
    assert watch.fields() == {"python_s": 6.0, "mpi_s": 0.5, "group_s": 0.25, "build_s": 2.5, "load_s": 1.5}
    assert sum(watch.fields().values()) == 2.0 + 8.75


def test_the_age_of_a_process_is_older_than_its_first_line():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    age, since_first_line = map(float, done.stdout.split())
    assert since_first_line - 0.02 <= age <= since_first_line + 5


def test_where_the_system_does_not_tell_it_is_nothing(monkeypatch):
    monkeypatch.setattr("slurmtrain.runtime.startup.Path.read_text", lambda _: "7 (a) b) R 1")
    assert process_age_s() == 0.0
