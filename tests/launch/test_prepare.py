"""A run folder is there whole, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slurmtrain.config.stored import read_job, read_plan, read_site
from slurmtrain.errors import RunExistsError, SlurmtrainError
from slurmtrain.launch.prepare import RunContents, create_run, discard_run, renew_run
from slurmtrain.launch.request import CodeRecord, LaunchRequest
from slurmtrain.launch.snapshot import Snapshot
from slurmtrain.rundir import RunDir
from tests.fakes.disk import FakeDisk
from tests.launch.samples import job, plan, request, site


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "source/model.py"
    path.parent.mkdir()
    path.write_text("one")
    return Snapshot(CodeRecord(), ((path, "model.py"),))


@pytest.fixture
def run(tmp_path):
    (tmp_path / "root").mkdir()
    return RunDir(tmp_path / "root/llama")


def contents(code, a_job=None) -> RunContents:
    a_job = a_job or job()
    return RunContents(b"# as given\n", a_job, site(), plan(a_job, site()), request(a_job), "#!/bin/bash\n", code)


def everything(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_a_new_run_holds_all_that_a_job_needs(run, code):
    create_run(run, contents(code), FakeDisk())
    assert everything(run.path.parent) == sorted(
        ["llama"]
        + [
            f"llama/{name}"
            for name in ("attempts", "checkpoints", "code", "events", "submit", "job.json", "job.toml", "plan.json", "site.json")
        ]
        + ["llama/code/model.py", "llama/submit/job.sbatch", "llama/submit/request.json"]
    )
    assert run.job_toml.read_bytes() == b"# as given\n"
    assert (read_job(run.job_json), read_site(run.site_json)) == (job(), site())
    assert read_plan(run.plan_json).world == 8
    assert LaunchRequest.model_validate(json.loads(run.request_json.read_bytes())) == request()


def test_a_disk_that_is_full_at_any_point_leaves_nothing_and_one_line(run, code):
    counting = FakeDisk({})
    create_run(run, contents(code), counting)
    discard_run(run)
    writes = [method for method, _ in counting.calls].count("write")
    assert writes == 6
    for faults in [{"write": {n}} for n in range(1, writes + 1)] + [{"publish_dir": {1}}]:
        with pytest.raises(SlurmtrainError, match="No space left on device: nothing was submitted") as caught:
            create_run(run, contents(code), FakeDisk(faults))
        assert "\n" not in str(caught.value)
        assert everything(run.path.parent) == []


def test_a_source_that_vanishes_leaves_nothing(run, code, tmp_path):
    (tmp_path / "source/model.py").unlink()
    with pytest.raises(SlurmtrainError, match=r"source/model.py: No such file"):
        create_run(run, contents(code), FakeDisk())
    assert everything(run.path.parent) == []


def test_a_name_that_is_taken_meanwhile_keeps_what_is_there(run, code):
    create_run(run, contents(code), FakeDisk())
    run.stop.touch()
    with pytest.raises(RunExistsError):
        create_run(run, contents(code), FakeDisk())
    assert run.stop.exists()
    assert len(list(run.path.parent.iterdir())) == 1


def test_renewal_takes_new_code_and_configuration_and_keeps_the_rest(run, code, tmp_path):
    create_run(run, contents(code), FakeDisk())
    (run.checkpoints / "step-00000005").mkdir()
    run.stop.touch()
    (run.code / "stale.py").write_text("")
    (tmp_path / "source/model.py").write_text("two")
    renew_run(run, contents(code, job(time="2:00:00")), FakeDisk())
    assert read_job(run.job_json).slurm.time == "2:00:00"
    assert [p.name for p in run.code.iterdir()] == ["model.py"]
    assert (run.code / "model.py").read_text() == "two"
    assert (run.checkpoints / "step-00000005").is_dir()
    assert not run.stop.exists()
    assert not [p for p in run.path.iterdir() if p.name.startswith(".")]


def test_renewal_on_a_full_disk_keeps_the_old_code(run, code):
    create_run(run, contents(code), FakeDisk())
    with pytest.raises(SlurmtrainError, match="No space left"):
        renew_run(run, contents(code), FakeDisk({"write": {1}}))
    assert (run.code / "model.py").read_text() == "one"
    assert not [p for p in run.path.iterdir() if p.name.startswith(".")]


def test_renewal_between_a_copy_and_live_code(run, code, tmp_path):
    live = Snapshot(CodeRecord(live=True), (), link=tmp_path / "source")
    create_run(run, contents(live), FakeDisk())
    assert run.code.readlink() == tmp_path / "source"
    renew_run(run, contents(code), FakeDisk())
    assert not run.code.is_symlink()
    assert (tmp_path / "source/model.py").exists()
    renew_run(run, contents(live), FakeDisk())
    assert run.code.is_symlink()


def test_a_branch_knows_from_the_first_moment_where_it_came_from(run, code):
    create_run(run, replace(contents(code), origin=b"{}\n"), FakeDisk())
    assert run.origin_json.read_bytes() == b"{}\n"
    renew_run(run, contents(code), FakeDisk())
    assert run.origin_json.read_bytes() == b"{}\n"
