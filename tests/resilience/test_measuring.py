"""A run whose job says preflight = "full", on a stage of fakes: who is measured, left out, or not measured again, and who may stop it."""

from __future__ import annotations

import json

import pytest

from slurmtrain.config.stored import read_job
from slurmtrain.preflight.full import measure
from slurmtrain.preflight.history import read_newest
from slurmtrain.preflight.registry import all_checks
from slurmtrain.resilience.signals import NOTICE
from tests.fakes.probes import FakeProbes
from tests.resilience.runs import site_of
from tests.resilience.stage import Stage


class Measuring:
    """Stands for preflight.measuring.measure_on: the real measurements, on pretended probes."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.asked: list[tuple[str, ...]] = []
        self.arrange = lambda probes: None

    def __call__(self, launcher, base, request, baseline, clock, say, *, called, record=False):  # noqa: PLR0917
        self.asked.append(base.nodes)
        probes = FakeProbes(self.stage.clock, base.nodes)
        self.arrange(probes)
        return measure(probes, base.nodes, request, baseline, clock, say, called=called, record=record)


@pytest.fixture
def stage(tmp_path) -> Stage:
    """Two nodes of four are the world; the checks of health are left out: they would look at this machine."""
    skip = [check.name for check in all_checks()]
    site = site_of("srun", 2, fabric={"kind": "loopback"}, preflight={"cache_s": 600, "skip": skip})
    made = Stage(tmp_path, nodes=2, spares=2, site=site)
    job = read_job(made.run.job_json)
    made.run.job_json.write_text(job.model_copy(update={"preflight": "full"}).model_dump_json(exclude_none=True))
    made.measure = made.measuring = Measuring(made)
    return made


def avoided(stage: Stage) -> dict[str, dict[str, object]]:
    return json.loads(stage.run.exclude_json.read_bytes())["nodes"] if stage.run.exclude_json.exists() else {}


def history(stage: Stage) -> list[tuple[str, str, bool]]:
    return [(one.node, one.level, one.ok) for one in read_newest(stage.run.path.parent / "preflight.jsonl")]


def test_all_nodes_are_measured_and_the_bad_one_is_replaced_by_a_spare(stage):
    stage.train(until=3)
    stage.measuring.arrange = lambda probes: probes.slow_device.update({("n1", 0): 50.0})
    assert stage.supervise().outcome == "finished"
    assert stage.measuring.asked == [("n1", "n2", "n3", "n4")]
    assert stage.recorded().nodes == ("n2", "n3")
    entry = avoided(stage)["n1"]
    assert entry["reason"] == "failed its check"
    assert "matmul" in entry["evidence"]
    assert "TFLOPS is the median of 3 others" in entry["evidence"]
    assert history(stage) == [("n1", "full", False), *((f"n{i}", "full", True) for i in (2, 3, 4))]
    assert any("out: n1" in line for line in stage.lines)


def test_too_few_nodes_end_the_attempt_with_the_reason(stage):
    stage.measuring.arrange = lambda probes: probes.hung.update({"n1", "n2", "n3"})
    summary = stage.supervise()
    assert summary.outcome == "failed" or summary.code != 0
    outcome = stage.recorded().outcome
    assert outcome.kind == "launch"
    assert "no answer in" in outcome.cause
    assert avoided(stage) == {}, "most failed: it is not the nodes"


def test_what_was_fit_a_short_while_ago_is_not_measured_again_and_after_a_fault_it_is(stage):
    """The second attempt follows a crash within the time; a node that is avoided since has no say."""
    for step in range(1, 4):
        stage.at(float(step), lambda step=step: stage.make_step(step))
    stage.at(3.5, lambda: [stage.record(rank, "error", "ValueError: bad token", code=1) for rank in range(4)] and stage.leave())
    stage.train(until=6, first=4, attempt=2)
    assert stage.supervise().outcome == "finished"
    assert stage.run.attempt_numbers() == [1, 2]
    assert len(stage.measuring.asked) == 1
    assert any("not measured again" in line for line in stage.lines)
    stage.clock.advance(700)
    assert {level for _, level, _ in history(stage)} == {"full", "quick"}


def test_a_signal_ends_the_measurements_and_the_job_is_requeued(stage):
    stage.measuring.arrange = lambda probes: setattr(probes, "before", lambda do: do == "reduce" and stage.signals.receive(NOTICE))
    summary = stage.supervise()
    assert (summary.code, stage.slurm.requeued) == (75, [stage.job_id])
    assert stage.recorded().outcome.kind == "requeue"
    assert history(stage) == []


def test_quick_measures_nothing(stage):
    job = read_job(stage.run.job_json)
    stage.run.job_json.write_text(job.model_copy(update={"preflight": "quick"}).model_dump_json(exclude_none=True))
    stage.train(until=3)
    assert stage.supervise().outcome == "finished"
    assert stage.measuring.asked == []
