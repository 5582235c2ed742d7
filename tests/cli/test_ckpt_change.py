"""`slurmtrain ckpt prune`, `copy` and `now`: what goes, what comes, what is asked for."""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import pytest
from click.testing import CliRunner

from slurmtrain.cli.main import main
from slurmtrain.models.names import global_shapes
from slurmtrain.resilience.records import Outcome
from slurmtrain.rundir import RunDir
from slurmtrain.store.aside import set_aside
from slurmtrain.store.leases import lease, pin
from slurmtrain.store.listing import steps_present
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.history import read_acts
from tests.checkpoint.stored import flip, store
from tests.cli.ckpts import MODEL, make_run, save
from tests.cli.desk import Desk, one_line_of
from tests.cli.ran import attempted, submitted, write_event
from tests.cli.test_weights import Keeping


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def run(desk) -> RunDir:
    run = make_run(desk, keep=2, keep_every_steps=20)
    save(desk, run, 10, 20, 30, 40, 50)
    return run


def there(run: RunDir) -> list[int]:
    return steps_present(run.checkpoints)


def size_of(run: RunDir, *steps: int) -> str:
    size = sum(path.stat().st_size for step in steps for path in run.checkpoint(step).iterdir())
    return f"{size / 1024:.1f} KiB"


def test_the_jobs_own_rules_are_the_default(desk, run):
    """keep = 2 and the multiples of 20 stay."""
    each, total = size_of(run, 10), size_of(run, 10, 30)
    result = desk.type("ckpt", "prune", "job", "--dry-run")
    assert result.stdout.splitlines() == [
        f"step-00000010  {each}",
        f"step-00000030  {each}",
        f"run job: would remove 2 checkpoints, {total}",
    ]
    assert there(run) == [10, 20, 30, 40, 50]
    result = desk.type("ckpt", "prune", "job", "--yes")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, f"run job: removed 2 checkpoints, {total}")
    assert there(run) == [20, 40, 50]
    assert sorted(path.name for path in run.checkpoints.iterdir() if path.name != ".leases") == [f"step-000000{n}" for n in (20, 40, 50)]
    assert desk.type("ckpt", "prune", "job", "--yes").stdout == "run job: nothing to remove\n"


@pytest.mark.parametrize(
    "options, stay",
    [
        (("--keep", "1"), [20, 40, 50]),
        (("--keep", "1", "--keep-every-steps", "0"), [50]),
        (("--keep-every-steps", "25"), [40, 50]),
        (("--keep", "1", "--keep-every-steps", "0", "--keep-best", "1", "--best-metric", "loss"), [30, 50]),
        (("--keep", "1", "--keep-every-steps", "0", "--keep-every-hours", "0.05"), [20, 50]),
    ],
)
def test_options_say_otherwise_one_by_one(desk, options, stay):
    """Times are those of a clock that began a span of three minutes at step 30."""
    run = make_run(desk, keep=2, keep_every_steps=20)
    desk.clock.advance(-desk.clock.time() % 180 + 120)
    for step, loss in ((10, 3.0), (20, 2.5), (30, 2.0), (40, 2.2), (50, 2.1)):
        age = {10: 300, 20: 180, 30: 120, 40: 60, 50: 0}[step]
        save(desk, run, step, t=desk.clock.time() - age, state={"metrics": {"loss": loss}})
    result = desk.type("ckpt", "prune", "job", "--yes", *options)
    assert result.exit_code == 0, result.output
    assert there(run) == stay


def test_the_newest_that_verifies_stays_and_what_is_newer_too(desk, run):
    """Broken: the newest folder taken for the newest that verifies, 40 would go and nothing that loads be left."""
    flip(run.checkpoint(50) / "rank-00000.h5", 2048)
    result = desk.type("ckpt", "prune", "job", "--keep", "1", "--keep-every-steps", "0", "--yes")
    assert result.exit_code == 0, result.output
    assert there(run) == [40, 50]
    assert result.stderr.startswith("note: the checkpoint of step 50 does not verify and stays: rank-00000.h5: ")


def test_nothing_goes_where_none_verifies(desk, run):
    for step in there(run):
        flip(run.checkpoint(step) / "rank-00000.h5", 2048)
    result = desk.type("ckpt", "prune", "job", "--yes")
    assert "no checkpoint verifies" in one_line_of(result, code=1)
    assert there(run) == [10, 20, 30, 40, 50]


def test_what_is_read_or_pinned_stays(desk, run):
    pin(run, 30, "a person", 3600, clock=desk.clock)
    with lease(run, 10, "a reader", clock=desk.clock):
        assert desk.type("ckpt", "prune", "job", "--yes").stdout == "run job: nothing to remove\n"
    desk.type("ckpt", "prune", "job", "--yes")
    assert there(run) == [20, 30, 40, 50]


def test_those_set_aside_go_when_asked_for(desk, run):
    aside = set_aside(run, 40, "damaged", clock=desk.clock)
    desk.type("ckpt", "prune", "job", "--yes")
    assert aside.is_dir()
    result = desk.type("ckpt", "prune", "job", "--yes", "--aside")
    assert result.stdout.splitlines()[0].startswith("step-00000040.aside-0001  ")
    assert not aside.exists()
    for step in there(run):
        set_aside(run, step, "damaged", clock=desk.clock)
    assert "removed 3 checkpoints" in desk.type("ckpt", "prune", "job", "--yes", "--aside").stdout


def test_a_person_is_asked_and_a_script_says_yes(desk, run, monkeypatch):
    result = desk.type("ckpt", "prune", "job")
    assert result.exit_code == 2
    assert "nobody can be asked here: give --yes" in result.stderr
    assert there(run) == [10, 20, 30, 40, 50]
    monkeypatch.setattr("slurmtrain.cli.ckpt_prune.asked_here", lambda: True)
    words = ["ckpt", "prune", "job"]
    result = CliRunner().invoke(main, words, obj=desk.doors, input="n\n")
    assert (result.exit_code, result.stderr) == (130, "slurmtrain: interrupted\n")
    assert there(run) == [10, 20, 30, 40, 50]
    result = CliRunner().invoke(main, words, obj=desk.doors, input="y\n")
    assert "run job: remove 2 checkpoints, " in result.stdout
    assert there(run) == [20, 40, 50]


def test_what_cannot_be_removed_is_told_and_ends_with_1(desk, run, monkeypatch):
    from slurmtrain.syscalls import SystemCalls

    monkeypatch.setattr(SystemCalls, "rename", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    result = desk.type("ckpt", "prune", "job", "--yes")
    assert result.exit_code == 1
    assert f"slurmtrain: {run.checkpoint(10)}: not removed: Permission denied" in result.stderr
    assert result.stdout.splitlines()[-1] == "run job: removed 0 checkpoints, 0 B"


def test_rules_that_need_a_metric_and_a_run_without_checkpoints(desk):
    run = make_run(desk)
    assert "run job has no checkpoint yet" in one_line_of(desk.type("ckpt", "prune", "job"))
    save(desk, run, 10)
    assert "needs --best-metric" in one_line_of(desk.type("ckpt", "prune", "job", "--keep-best", "2"))


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_copy_lies_in_the_folder_that_was_named(desk, run, tmp_path):
    archive = tmp_path / "deep" / "archive"
    result = desk.type("ckpt", "copy", "job@30", archive)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{archive}/step-00000030: 2 files, ")
    assert content(archive / "step-00000030") == content(run.checkpoint(30))
    assert not list(run.leases.iterdir())
    assert "step-00000030: is there already" in one_line_of(desk.type("ckpt", "copy", "job@30", archive))
    assert desk.type("ckpt", "copy", archive / "step-00000030", archive / "again").exit_code == 0
    assert desk.type("ckpt", "verify", archive / "again" / "step-00000030").exit_code == 0
    assert f"it is archive/step-{30:08d} then" in one_line_of(desk.type("ckpt", "copy", "job@30", archive / "step-00000001"))


@pytest.mark.parametrize(
    "words",
    [
        ("ckpt", "copy", "job@10", ""),
        ("ckpt", "reshard", "job@10", "--out", ""),
        ("ckpt", "to-dcp", "job@10", "--out", ""),
        ("ckpt", "export", "--hf", "job@10", "--out", ""),
        ("ckpt", "list", "job", "--root", ""),
        ("submit", "", "--dry-run"),
    ],
    ids=lambda words: words[1],
)
def test_an_empty_word_is_not_this_folder(desk, run, words, tmp_path, monkeypatch):
    """As of a variable that is not set. Broken: the copy lies in the folder where one stands."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    result = desk.type(*words)
    assert (result.exit_code, list(here.iterdir())) == (2, [])
    assert "an empty word is no" in one_line_of(result)


def test_a_copy_into_another_run_is_a_checkpoint_of_it(desk):
    weights = {f"model/{name}": np.zeros(shape, np.float32) for name, shape in global_shapes(MODEL).items()}
    run, other = make_run(desk), make_run(desk, "other")
    store(run.checkpoint(7), 7, weights)
    assert desk.type("ckpt", "copy", "job@7", "other").exit_code == 0
    assert there(other) == [7]
    assert desk.type("ckpt", "show", "other@7").exit_code == 0
    save(desk, run, 8)
    assert "job@8 has no model/" in one_line_of(desk.type("ckpt", "copy", "job@8", "other"), code=1)
    alive, _ = submitted(desk, "alive")
    attempted(desk, alive, "1", steps=range(0))
    assert "run alive trains: " in one_line_of(desk.type("ckpt", "copy", "job@7", "alive"))


def test_a_copy_that_cannot_be_leaves_nothing(desk, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "archiv: no such run, and no such folder" in one_line_of(desk.type("ckpt", "copy", "job", "archiv"))
    flip(run.checkpoint(50) / "rank-00001.h5", 2048)
    line = one_line_of(desk.type("ckpt", "copy", "job", "./archive"), code=1)
    assert "rank-00001.h5: chunk 0 (bytes from 0) differs from what was written: nothing was copied" in line
    assert not (tmp_path / "archive").exists()

    class Full:
        f_bavail, f_frsize, f_files, f_favail = 1, 512, 100, 100

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    assert "no room for " in one_line_of(desk.type("ckpt", "copy", "job@40", "./archive"))


def test_a_batch_job_copies_what_the_command_says(desk, run, tmp_path, monkeypatch):
    monkeypatch.chdir(desk.folder)
    desk.slurm = Keeping(desk.clock)
    result = desk.type("ckpt", "copy", "job@20", "my archive/", "--batch")
    assert result.stdout == "Submitted batch job 1\n", result.output
    assert not (desk.folder / "my archive").exists()
    subprocess.run(["bash", "-s"], input=desk.slurm.text, text=True, capture_output=True, cwd="/", check=True, env=dict(os.environ))
    assert content(desk.folder / "my archive" / "step-00000020") == content(run.checkpoint(20))


@pytest.fixture
def training(desk):
    """A run that trains: step 5 done, checkpoint of step 4."""
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    return run, job_id


def test_now_leaves_word_for_the_run(desk, training):
    run, _ = training
    result = desk.type("ckpt", "now", "job")
    assert (result.exit_code, result.stdout) == (0, "run job saves after step 6 or so and goes on; the newest is of step 4\n")
    assert run.save_request.exists()
    assert not run.stop.exists()
    assert read_acts(run)[-1].what == "save"


def test_now_waits_for_the_checkpoint(desk, training):
    run, _ = training

    def saved():
        run.save_request.unlink()
        save(desk, run, 6)

    desk.clock.at(7.0, saved)
    begin = desk.clock.time()
    result = desk.type("ckpt", "now", "job", "--wait")
    assert (result.exit_code, result.stdout) == (0, "checkpoint of step 6\n")
    assert 7 <= desk.clock.time() - begin <= 9


def test_a_half_written_one_does_not_count(desk, training):
    run, _ = training
    desk.clock.at(3.0, lambda: run.checkpoint(6).mkdir())
    desk.clock.at(20.0, lambda: save(desk, run, 7))
    assert desk.type("ckpt", "now", "job", "--wait").stdout == "checkpoint of step 7\n"


def test_waiting_ends_with_the_run(desk, training):
    run, job_id = training
    desk.clock.at(15.0, lambda: attempted(desk, run, job_id, steps=range(0), outcome=Outcome("failed", "rank 3 code 7")))
    desk.clock.at(15.0, lambda: desk.slurm.change(job_id, state="FAILED"))
    result = desk.type("ckpt", "now", "job", "--wait")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "slurmtrain: run job is FAILED (rank 3 code 7) and made no newer checkpoint"


def test_the_last_checkpoint_of_a_run_that_finishes_meanwhile_counts(desk, training):
    run, _ = training

    def finished():
        save(desk, run, 6)
        run.finished.write_text("{}")

    desk.clock.at(2.5, finished)
    assert desk.type("ckpt", "now", "job", "--wait").exit_code == 0


def test_waiting_ends_when_the_save_fails(desk, training):
    run, _ = training
    write_event(run, Event("save_failed", desk.clock.time(), 1, 0, {"step": 3, "error": "of long ago"}))
    event = Event("save_failed", desk.clock.time(), 1, 0, {"step": 6, "error": "42 GB needed, 3 GB free"})
    desk.clock.at(5.0, lambda: write_event(run, event))
    result = desk.type("ckpt", "now", "job", "--wait")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "slurmtrain: the save of step 6 failed: 42 GB needed, 3 GB free"


@pytest.mark.parametrize("state", ["PENDING", "COMPLETED"])
def test_now_is_refused_for_a_run_that_does_not_train(desk, state):
    run, _ = submitted(desk, state=state)
    line = one_line_of(desk.type("ckpt", "now", "job"))
    assert line.startswith("slurmtrain: run job does not train now: it is ")
    assert line.endswith(": nothing was asked")
    assert not run.save_request.exists()


def test_now_without_the_right_to_write(desk, training, monkeypatch):
    run, _ = training
    monkeypatch.setattr("pathlib.Path.touch", lambda self: (_ for _ in ()).throw(PermissionError(13, "Permission denied", str(self))))
    assert f"{run.save_request}: Permission denied: nothing was asked" in one_line_of(desk.type("ckpt", "now", "job"))


def test_json_of_list_while_a_run_trains(desk, training):
    assert json.loads(desk.type("ckpt", "list", "job", "--json").stdout)["durable"] == 4
