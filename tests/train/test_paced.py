"""A rank that trains with `checkpoint.interval = "auto"`, as the loop puts it together: when it saves, and events that say why."""

from __future__ import annotations

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SiteReliability
from slurmtrain.config.stored import write_models
from slurmtrain.fabric.plan import build_plan
from slurmtrain.planner.interval import daly
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.reader import read_events
from slurmtrain.train import pace
from tests.train.runs import Run, make_data, make_job, make_site
from tests.train.solo import solo_loop, solo_world

RATE = 2_000_000.0


@pytest.fixture
def run(tmp_path):
    """Thirty steps on a node that fails many times a second, by the site's word: whatever a save takes, another is soon due."""
    plain = make_job(make_data(tmp_path), gpus=1, training={"steps": 30, "micro_batch": 8}).model_dump()
    job = JobConfig.model_validate({**plain, "checkpoint": {"interval": "auto", "keep": 3}})
    site = make_site().model_copy(update={"reliability": SiteReliability(failures_per_node_day=RATE)})
    folder = RunDir(tmp_path / "run")
    folder.create()
    write_models(folder, job, site, build_plan(job, site), SystemDisk())
    return Run(folder, 1, 1)


def test_it_saves_by_dalys_word_from_the_first_save_on(run, tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "FIRST_S", 0.0)
    with solo_world(tmp_path):
        session, loop = solo_loop(run)
        session.flag.given.add("requeue")
        assert loop.run().step == 1
        _, loop = solo_loop(run, 2)
        loop.run()
    assert run.events("interval", 1) != []
    again = run.events("interval", 2)
    saves = [save["step"] for save in run.events("save", 2)]
    assert saves[-1] == 30
    assert len(saves) > 2, "the first minutes would have brought one, at the end"
    for told in (*run.events("interval", 1), *again):
        assert told["seconds"] == pytest.approx(daly(told["stall_s"], told["mtbf_s"]), rel=1e-4)
        assert told["mtbf_s"] == pytest.approx(86_400 / told["failures_per_node_day"], rel=1e-4)
        assert (told["nodes"], told["site_failures_per_node_day"]) == (1, RATE)
    kinds = [(event.kind, event.attempt) for event in read_events(run.run.events)]
    assert kinds.index(("interval", 2)) < kinds.index(("save", 2)), "what the attempt before has learnt is known at once"
