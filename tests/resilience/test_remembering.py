"""What an attempt's preflight found stands in the history; what cannot be written there is said, and nobody is kept from starting."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from slurmtrain.preflight.finding import Finding
from slurmtrain.preflight.history import read_history
from slurmtrain.resilience.remembering import remember
from slurmtrain.resilience.supervisor import Summary
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FakeDisk
from tests.resilience.runs import site_of
from tests.resilience.stage import ONCE, Stage

SLOW = Finding("n2", "pair", "fail", "0.2 GB/s", "look at the cables", peer="n3")


@pytest.fixture
def composition(tmp_path):
    lines: list[str] = []
    run = SimpleNamespace(path=tmp_path / "llama", name="llama")
    setup = SimpleNamespace(site=site_of("srun", 2))
    allocation = SimpleNamespace(job_id="12_3")
    return SimpleNamespace(
        setup=setup, run=run, environ={}, clock=FakeClock(), disk=FakeDisk(), allocation=allocation, say=lines.append, lines=lines
    )


def test_a_line_for_each_node_beside_the_runs(composition, tmp_path):
    remember(composition, ["n1", "n2"], [SLOW], level="full", seconds=31.5, figures={"n1": {"pair_gb_s": 11.0}})
    one, other = read_history(tmp_path / "preflight.jsonl")
    assert (one.node, one.ok, one.level, one.by, one.job_id, one.run) == ("n1", True, "full", "attempt", "12_3", "llama")
    assert (one.figures, other.ok, other.findings) == ({"pair_gb_s": 11.0}, False, (SLOW,))
    assert composition.lines == []


def test_what_cannot_be_written_is_said(composition):
    composition.disk.faults["append"] = None
    remember(composition, ["n1"], [], level="quick", seconds=1.0)
    (line,) = composition.lines
    assert line.startswith("the history of preflights cannot be written: ")
    assert "No space left on device" in line


def test_a_run_without_a_preflight_leaves_no_line_and_one_with_it_does(tmp_path):
    stage = Stage(tmp_path, recovery=ONCE)
    stage.train(until=2)
    assert isinstance(stage.supervise(), Summary)
    assert not (tmp_path / "preflight.jsonl").exists(), "its job says off"
    again = Stage(tmp_path / "second", recovery=ONCE)
    again.run.job_json.write_text(again.run.job_json.read_text().replace('"preflight": "off"', '"preflight": "quick"'))
    again.supervise()
    found = list(read_history(tmp_path / "second" / "preflight.jsonl"))
    assert [(one.node, one.level, one.ok) for one in found[:2]] == [("n1", "quick", False), ("n2", "quick", False)], "they have not looked"
