"""How a run begins: --resume STEP, --resume none, and --from RUN@STEP; what they leave behind, refuse, and put back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slurmtrain.boxes import whole
from slurmtrain.cli.options import words
from slurmtrain.config.changes import stored
from slurmtrain.config.stored import read_job
from slurmtrain.data.counting import source_of
from slurmtrain.errors import SlurmError, SubmitUnknownError
from slurmtrain.models.names import global_shapes
from slurmtrain.store.aside import asides
from slurmtrain.store.leases import leased
from slurmtrain.store.listing import steps_present
from slurmtrain.store.local import LocalNewest, make_rules, newest_local, read_rules, tell_newest
from slurmtrain.store.manifest import CHUNK_BYTES, MANIFEST_NAME, StoredBox, TensorEntry
from slurmtrain.store.origin import Ancestor, Origin, read_origin
from slurmtrain.store.verify import read_manifest, sums_of, verify
from slurmtrain.telemetry.history import read_acts
from tests.cli.desk import Desk, one_line_of
from tests.store.checkpoints import save


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def trained(desk, *steps, name="job", told=True):
    """A run that has ended, with checkpoints of these steps, as its trainer would leave them (`told`: they say of which job)."""
    assert desk.submit("-J", name).exit_code == 0
    desk.slurm.change(str(len(desk.slurm.submitted)), state="COMPLETED")
    run = desk.run(name)
    job = read_job(run.job_json)
    for step in steps:
        folder = save(run, step)
        state = {"job": stored(job), **vars(source_of(job))} if told else {}
        (folder / MANIFEST_NAME).write_bytes(replace(read_manifest(folder), state=state).to_json())
    return run


def refusing(desk, error=None):
    def submit(script, *, options=()):
        raise error or SlurmError("no")

    desk.slurm.submit = submit


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["--resume", "job.toml"], ["--resume=newest", "job.toml"]),
        (["--resume", "1200", "job.toml"], ["--resume=1200", "job.toml"]),
        (["--resume=1200", "job.toml"], ["--resume=1200", "job.toml"]),
        (["job.toml", "--resume", "none"], ["job.toml", "--resume=none"]),
        (["job.toml", "--resume"], ["job.toml", "--resume=newest"]),
        (["--resume", "--parsable", "job.toml"], ["--resume=newest", "--parsable", "job.toml"]),
        (["job.toml", "--", "--resume", "3"], ["job.toml", "--", "--resume", "3"]),
    ],
)
def test_the_value_of_resume_may_be_left_out(typed, read):
    assert words(typed) == read


@pytest.mark.parametrize(
    "typed", ["--resume {} -J job", "-J job --resume 20 {}", "{} --resume=20 -J job", "--resume 20 {} -J job", "--resume none {}"]
)
def test_every_way_to_write_it_is_understood(desk, typed):
    trained(desk, 10, 20)
    result = desk.type("submit", *typed.format(desk.job_file).split())
    assert (result.exit_code, result.stdout) == (0, "Submitted batch job 2\n"), result.output


@pytest.mark.parametrize("value", ["-1", "1.5", "all", ""])
def test_nonsense_is_told(desk, value):
    trained(desk, 10)
    assert "is no step" in one_line_of(desk.submit(f"--resume={value}"))


def test_newer_checkpoints_are_set_aside(desk):
    run = trained(desk, 10, 20, 30)
    run.finished.write_text('{"v":1,"step":100}')
    result = desk.submit("--resume", "10")
    assert result.exit_code == 0, result.output
    assert "set aside: step-00000020.aside-0001, step-00000030.aside-0001" in result.stderr
    assert steps_present(run.checkpoints) == [10]
    assert [(one.step, one.why) for one in asides(run)] == [(20, "resume from step 10"), (30, "resume from step 10")]
    assert read_acts(run)[-1].detail == "resume from step 10"
    assert not run.finished.exists()


@pytest.mark.parametrize(("back_to", "refused", "kept"), [("10", False, True), ("none", False, False), ("none", True, True)])
def test_what_was_done_about_bad_steps_is_forgotten_by_a_run_that_begins_anew(desk, back_to, refused, kept):
    run = trained(desk, 10, 20)
    for path in (run.numerics_json, run.examination_json):
        path.write_text(path.name)
    if refused:
        refusing(desk)
    assert (desk.submit("--resume", back_to).exit_code == 1) == refused
    assert [path.exists() and path.read_text() == path.name for path in (run.numerics_json, run.examination_json)] == [kept] * 2


def test_none_of_them_begins_anew_in_the_same_run(desk):
    run = trained(desk, 10, 20)
    run.finished.write_text('{"v":1,"step":100}')
    assert desk.submit("--resume", "none", "--set", "training.seed=7").exit_code == 0
    assert steps_present(run.checkpoints) == []
    assert [one.step for one in asides(run)] == [10, 20]
    assert not run.finished.exists()
    assert read_acts(run)[-1].detail == "resume from none; training.seed: 1234 -> 7"


def test_a_dry_run_moves_nothing(desk):
    run = trained(desk, 10, 20)
    assert desk.submit("--resume", "10", "--dry-run").exit_code == 0
    assert steps_present(run.checkpoints) == [10, 20]


def test_a_step_that_is_not_there_lists_those_that_are(desk):
    run = trained(desk, 10, 20, 30)
    assert one_line_of(desk.submit("--resume", "15"), 2).endswith("has no checkpoint of step 15; there are those of 10, 20 and 30")
    (run.checkpoint(20) / "rank-00001.h5").write_bytes(b"cut")
    line = one_line_of(desk.submit("--resume", "20"), 1)
    assert "step-00000020 does not verify (rank-00001.h5: 3 bytes" in line
    assert line.endswith("there are those of 10 and 30")
    assert steps_present(run.checkpoints) == [10, 20, 30]


def test_a_refused_job_puts_them_back(desk):
    run = trained(desk, 10, 20, 30)
    before = {path: path.stat().st_mtime_ns for path in run.checkpoints.rglob("*") if path.is_file()}
    refusing(desk)
    one_line_of_failure(desk.submit("--resume", "10"))
    assert steps_present(run.checkpoints) == [10, 20, 30]
    assert {path: path.stat().st_mtime_ns for path in run.checkpoints.rglob("*") if path.is_file()} == before
    assert not any(verify(run.checkpoint(step)) for step in (10, 20, 30))


def one_line_of_failure(result):
    assert result.exit_code == 1, result.output
    assert result.stdout == ""


def on_disks(run, step):
    """As an attempt with checkpoints on its nodes' own disks leaves the run folder."""
    run.attempt(1).create()
    rules = make_rules(run)
    tell_newest(run, LocalNewest(step, 1, 0.0, ("n1",)))
    return rules


@pytest.mark.parametrize(("word", "left"), [("20", 20), ("none", -1)])
def test_what_lies_on_the_nodes_own_disks_is_left_behind_too(desk, word, left):
    run = trained(desk, 10, 20)
    rules = on_disks(run, 25)
    assert newest_local(run).step == 25
    with_submit, desk.slurm.submit = desk.slurm.submit, None
    refusing(desk)
    one_line_of_failure(desk.submit("--resume", word))
    assert read_rules(run) == rules
    assert newest_local(run).step == 25
    desk.slurm.submit = with_submit
    assert desk.submit("--resume", word).exit_code == 0
    assert read_rules(run) == rules.without(1, left)
    assert newest_local(run) is None


def test_a_last_step_before_what_lies_on_the_nodes_is_refused(desk):
    on_disks(trained(desk, 10), 25)
    assert "is at step 25 already" in one_line_of(desk.submit("--resume", "--set", "training.steps=20"))
    assert desk.submit("--resume", "--set", "training.steps=25").exit_code == 0


def test_a_job_that_may_have_been_taken_leaves_them_aside(desk):
    run = trained(desk, 10, 20)
    refusing(desk, SubmitUnknownError("sbatch got no answer"))
    one_line_of_failure(desk.submit("--resume", "10"))
    assert steps_present(run.checkpoints) == [10]


def test_a_run_that_is_busy_keeps_its_checkpoints(desk):
    run = trained(desk, 10, 20)
    desk.slurm.change("1", state="RUNNING")
    assert "is RUNNING" in one_line_of(desk.submit("--resume", "10"))
    assert steps_present(run.checkpoints) == [10, 20]


def test_a_last_step_before_the_checkpoint_is_refused(desk):
    trained(desk, 10, 20)
    assert "training.steps = 5" in one_line_of(desk.submit("--resume", "10", "--set", "training.steps=5"))
    assert desk.submit("--resume", "10", "--set", "training.steps=15").exit_code == 0


def test_other_tokens_are_told_before_anything_is_submitted(desk):
    """Broken: the job waits in the queue, and its ranks refuse the checkpoint."""
    from slurmtrain.data.build import build

    trained(desk, 10)
    (desk.folder / "other.txt").write_text("other words " * 200)
    build([desk.folder / "other.txt"], desk.folder / "other")
    line = one_line_of(desk.submit("--resume", "--set", "data.path=other"))
    assert "data.path: the checkpoint of step 10 was trained on other tokens" in line
    (desk.folder / "tokens").rename(desk.folder / "moved")
    assert desk.submit("--resume", "--set", "data.path=moved").exit_code == 0, "the same ones, elsewhere"


@pytest.mark.parametrize("words", [("--resume",), ("--from", "job@20", "-J", "branch")], ids=["resume", "branch"])
def test_what_may_not_change(desk, words):
    trained(desk, 10, 20)
    line = one_line_of(desk.submit(*words, "--set", "optimizer.name=sgd"))
    assert line.startswith("slurmtrain: optimizer.name = 'sgd': the state of adamw in the checkpoint of step 20")
    assert "-J NAME" in line


def test_a_branch_begins_with_a_checkpoint_of_another_run(desk):
    source = trained(desk, 10, 20)
    result = desk.submit("-J", "branch", "--from", "job@10", "--set", "optimizer.lr=1e-4")
    assert (result.exit_code, result.stdout) == (0, "Submitted batch job 2\n"), result.output
    assert "otherwise than in job at step 10: optimizer.lr: 0.001 -> 0.0001" in result.stderr
    run = desk.run("branch")
    assert json.loads(run.origin_json.read_bytes()) == {"v": 1, "run": str(source.path), "step": 10, "lineage": []}
    assert leased(source, desk.clock.time()) == {10}, "retention leaves it alone"
    assert steps_present(run.checkpoints) == []
    assert read_acts(run)[-1].detail == f"branch of {source.path} at step 10; optimizer.lr: 0.001 -> 0.0001"
    assert "origin" in desk.type("status", "branch").output
    assert f"{source.path} at step 10" in desk.type("status", "branch").output
    assert json.loads(desk.type("status", "branch", "--json").stdout)["origin"] == f"{source.path} at step 10"


def test_a_branch_of_a_branch_knows_both(desk):
    first = trained(desk, 10)
    assert desk.submit("-J", "second", "--from", first.path).exit_code == 0, "the newest"
    second = desk.run("second")
    save(second, 15)
    assert desk.submit("-J", "third", "--from", "second@15").exit_code == 0
    assert read_origin(desk.run("third")) == Origin(second.path, 15, (Ancestor(first.path, 10),))


def test_a_checkpoint_that_does_not_tell_its_job_is_its_runs(desk):
    trained(desk, 10, told=False)
    assert "training.seed" in one_line_of(desk.submit("-J", "b", "--from", "job", "--set", "training.seed=5"))
    assert desk.submit("-J", "b", "--from", "job").exit_code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--from", "job@15"), "has no checkpoint of step 15; there are those of 10 and 20"),
        (("--from", "gone@15"), "no run 'gone'"),
        (("--from", "job@x"), "RUN@STEP"),
        (("--from", "job@10", "--resume"), "give one of them"),
        (("--from", "job@20", "--set", "training.steps=20"), "training.steps = 20: the branch begins at step 20: use more than that"),
    ],
)
def test_branches_that_cannot_be(desk, words, says):
    trained(desk, 10, 20)
    assert says in one_line_of(desk.submit("-J", "branch", *words))
    assert not desk.run("branch").path.exists()


def test_a_branch_needs_a_name_of_its_own(desk):
    trained(desk, 10)
    assert "run 'job' exists" in one_line_of(desk.submit("--from", "job@10"))


def test_a_refused_branch_leaves_nothing(desk):
    source = trained(desk, 10)
    refusing(desk)
    one_line_of_failure(desk.submit("-J", "branch", "--from", "job@10"))
    assert not desk.run("branch").path.exists()
    assert leased(source, desk.clock.time()) == set()


def test_a_branch_by_hand(desk):
    source = trained(desk, 10, 20)
    script = desk.submit("--dry-run", "-J", "branch", "--from", "job").stdout
    assert leased(source, desk.clock.time()) == set()
    save(source, 30)
    from tests.cli.test_submit import prepare_command

    assert desk.type(*prepare_command(script)[4:]).exit_code == 0
    assert read_origin(desk.run("branch")) == Origin(source.path, 20)


def test_a_branch_without_a_checkpoint_of_its_own_goes_on_as_one(desk):
    source = trained(desk, 10, 20)
    desk.submit("-J", "branch", "--from", "job@10")
    desk.slurm.change("2", state="FAILED")
    assert "training.seed = 7: the checkpoint of step 10" in one_line_of(
        desk.submit("-J", "branch", "--resume", "--set", "training.seed=7")
    )
    assert desk.submit("-J", "branch", "--resume").exit_code == 0
    desk.slurm.change("3", state="FAILED")
    save(desk.run("branch"), 15)
    assert desk.submit("-J", "branch", "--resume", "none").exit_code == 0
    assert read_origin(desk.run("branch")) == Origin(source.path, 10)
    assert leased(source, desk.clock.time()) == {10}


def with_weights(run, step):
    """A checkpoint of zeros in the shapes of the model's tensors."""
    folder, job, at, tensors = save(run, step), read_job(run.job_json), 0, {}
    for name, shape in global_shapes(job.model).items():
        tensors[f"model/{name}"] = TensorEntry(shape, "float32", (StoredBox(whole(shape), "weights.h5", "d", None, at),))
        at += 4 * whole(shape).volume
    (folder / "weights.h5").write_bytes(bytes(at))
    manifest = replace(
        read_manifest(folder), tensors=tensors, files={"weights.h5": sums_of(folder / "weights.h5")}, chunk_bytes=CHUNK_BYTES
    )
    (folder / MANIFEST_NAME).write_bytes(manifest.to_json())


def test_weights_of_another_run_are_looked_at_and_kept_for_the_job(desk):
    """The newest when it was submitted, whatever the other run saves until the job starts."""
    source = trained(desk)
    with_weights(source, 10)
    with_weights(source, 20)
    said = ("-J", "warm", "--set", f"model.weights=run:{source.path}", "--set", "optimizer.name=sgd")
    result = desk.submit(*said)
    assert result.exit_code == 0, result.output
    assert read_job(desk.run("warm").job_json).model.weights == Path(f"run:{source.path}@20")
    assert leased(source, desk.clock.time()) == {20}
    assert read_origin(desk.run("warm")) is None
    line = one_line_of(desk.submit("-J", "b", *said[2:], "--set", "model.weights_names.norm*=x*"))
    assert "model.weights = " in line
    assert "norm.weight: this llama model has no such tensor" in line
    allowed = ("--set", 'model.weights_missing=["norm.weight"]', "--set", 'model.weights_surplus=["norm.*"]')
    result = desk.submit("-J", "b", *said[2:], "--set", "model.weights_names.norm*=x*", *allowed)
    assert result.exit_code == 0, result.output
    assert "; first values are kept of norm.weight; norm.weight is left aside" in result.stderr


@pytest.mark.parametrize(("weights", "says"), [("run:runs/job@15", "has no checkpoint of step 15"), ("run:runs/gone", "no run in")])
def test_weights_that_are_not_there(desk, weights, says):
    trained(desk, 10)
    line = one_line_of(desk.submit("-J", "warm", "--set", f"model.weights={weights}"))
    assert "model.weights = " in line
    assert says in line
