"""Every kind of harm to a checkpoint is found by the policies that promise it, named by file and tensor, and the one before is taken.

Commands say it, too: `ckpt verify`, and `submit --resume STEP` where the index or a size shows it.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.load import PartReader, Wish
from slurmtrain.checkpoint.restore import restore
from slurmtrain.cli.chosen import chosen, newest
from slurmtrain.errors import CheckpointError, CorruptCheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.aside import asides, set_aside
from slurmtrain.store.verify import verify
from tests.checkpoint.harm import CHUNK, HARMS, POLICIES, TENSORS, VICTIM, make, values
from tests.checkpoint.tilings import part_of
from tests.fakes.thread_group import run_ranks


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    run = RunDir(tmp_path_factory.mktemp("made"))
    for step in (20, 30):
        make(run.checkpoint(step), step)
    sizes = [path.stat().st_size for path in sorted(run.checkpoint(30).glob("*.h5"))]
    assert sizes[1] == sizes[2], "files can be swapped"
    assert min(sizes) > 9 * CHUNK
    return run


@pytest.fixture
def run(tmp_path, made):
    shutil.copytree(made.checkpoints, tmp_path / "run" / "checkpoints")
    return RunDir(tmp_path / "run")


class Loading:
    """Loads every tensor by a policy; `wrong`: names of those that are not what was saved, of the last that was loaded."""

    def __init__(self, policy, deed=lambda _: None):
        self.policy, self.deed, self.wrong = policy, deed, None

    def __call__(self, found):
        self.deed(found)
        wishes = [Wish(part_of(name, array.shape), array.dtype.name, np.zeros_like(array)) for name, array in TENSORS.items()]
        with PartReader(found.folder, found.manifest, self.policy) as reader:
            reader.fill_all(wishes)
        self.wrong = [one.part.name for one in wishes if one.target.tobytes() != values(one.part.name, found.step).tobytes()]


def restored(run, policy, **more):
    load = Loading(policy)
    found = restore(run.checkpoints, SoloGroup(), load, policy=policy, **more)
    return found, load.wrong


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", HARMS)
def test_a_restart(run, kind, policy):
    harm = HARMS[kind]
    harm.deed(run.checkpoint(30))
    found, wrong = restored(run, policy, set_aside=lambda step, why: set_aside(run, step, why))
    if policy not in harm.found:
        assert (found.step, found.passed_over) == (30, ())
        assert bool(wrong) == harm.spoils
        return
    ((step, why),) = found.passed_over
    assert (found.step, step, wrong) == (20, 30, [])
    assert all(word in why for word in harm.words), why
    assert why.isprintable()
    assert [one.step for one in asides(run)] == [30] * harm.aside
    assert {one.why for one in asides(run)} <= {why, ""}, "where no note could be left"
    assert run.checkpoint(30).exists() == (not harm.aside)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", HARMS)
def test_the_step_that_was_asked_for(run, kind, policy):
    harm = HARMS[kind]
    harm.deed(run.checkpoint(30))
    if policy not in harm.found:
        assert restored(run, policy, step=30)[0].step == 30
        assert verify(run.checkpoint(30), policy) == []
        return
    with pytest.raises(CorruptCheckpointError) as caught:
        restored(run, policy, step=30)
    assert all(word in str(caught.value) for word in harm.words), caught.value
    told = verify(run.checkpoint(30), policy)
    assert told
    assert all(line.isprintable() for line in told)


@pytest.mark.parametrize("kind", HARMS)
def test_what_submit_is_told(run, kind):
    harm = HARMS[kind]
    harm.deed(run.checkpoint(30))
    assert newest(run).step == (20 if harm.seen else 30)
    if not harm.seen:
        assert chosen(run, 30).step == 30
        return
    with pytest.raises(CheckpointError, match=r"step-00000030 does not verify .*; there are those of 20$") as caught:
        chosen(run, 30)
    assert all(word in str(caught.value) for word in harm.words), caught.value


def test_where_all_are_harmed_a_restart_stops_with_one_line_and_sets_none_aside(run):
    """To begin anew is a person's decision."""
    HARMS["a bit of a tensor"].deed(run.checkpoint(20))
    HARMS["a file missing"].deed(run.checkpoint(30))
    with pytest.raises(CorruptCheckpointError) as caught:
        restored(run, "full", set_aside=lambda *_: pytest.fail("nothing was loaded"))
    told = str(caught.value)
    assert "no checkpoint verifies: mend one, or move the folder away to start anew (step 30: " in told
    assert f"(step 30: {VICTIM}: No such file or directory: the file holds model/w, " in told
    assert f"; step 20: model/w, model/norm: {run.checkpoint(20)}/{VICTIM}: chunk 8 " in told
    assert told.isprintable()


@pytest.mark.parametrize("when", ["before", "between", "behind"])
@pytest.mark.parametrize("size", [1, 3])
def test_one_that_vanishes_while_it_is_loaded(run, when, size):
    """By a hand that knows no lease: all ranks turn to the one before, and there is nothing to be set aside."""
    aside = []

    def load(rank, found):
        loading, vanishes = Loading("full"), found.step == 30 and rank == 0
        if vanishes and when == "before":
            shutil.rmtree(found.folder)
        if vanishes and when == "between":
            with PartReader(found.folder, found.manifest) as reader:
                reader.fill(part_of("model/scale", ()), "float32", np.zeros((), np.float32))
                shutil.rmtree(found.folder)
                reader.fill_all([Wish(part_of("model/w", (150, 40)), "float32", np.zeros((150, 40), np.float32))])
        loading(found)
        if vanishes and when == "behind":
            shutil.rmtree(found.folder)
        assert loading.wrong == []

    def body(group):
        return restore(run.checkpoints, group, lambda found: load(group.rank, found), set_aside=lambda *more: aside.append(more))

    results = run_ranks(size, body)
    assert [one.step for one in results] == [20] * size
    assert aside == []
    ((step, why),) = results[0].passed_over
    assert step == 30
    assert why.endswith("No such file or directory")


def as_nobody(deed):
    """What a child gives that has no rights but those of others; what it raised comes as a value."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                result = deed()
            except Exception as error:  # noqa: BLE001 told to the parent
                result = error
            with os.fdopen(writing, "wb") as out:
                pickle.dump(result, out)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        data = told.read()
    os.waitpid(pid, 0)
    return pickle.loads(data)


@pytest.fixture
def shown(made):
    """A copy that everybody may read."""
    if os.geteuid():
        pytest.skip("only root can become another")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(made.checkpoints, Path(folder) / "run" / "checkpoints")
        yield RunDir(Path(folder) / "run")


@pytest.mark.parametrize(
    "what, words",
    [
        (f"step-00000030/{VICTIM}", (VICTIM, "Permission denied", "model/w")),
        ("step-00000030/manifest.json", ("manifest.json: Permission denied",)),
        ("step-00000030", ("step-00000030/manifest.json: Permission denied",)),
    ],
)
def test_what_may_not_be_read_is_passed_over_and_left_where_it_is(shown, what, words):
    (shown.checkpoints / what).chmod(0)
    aside = []
    found = as_nobody(lambda: (restored(shown, "full", set_aside=lambda *more: aside.append(more)), aside))
    (loaded, wrong), asides_ = found
    assert (loaded.step, wrong, asides_) == (20, [], [])
    ((step, why),) = loaded.passed_over
    assert step == 30
    assert all(word in why for word in words), why
    told = as_nobody(lambda: verify(shown.checkpoint(30)))
    assert "Permission denied" in told[0]
    error = as_nobody(lambda: restored(shown, "full", step=30))
    assert isinstance(error, CheckpointError)
    assert "Permission denied" in str(error)
    assert restored(shown, "full")[0].step == 30, "root reads all"


def test_a_folder_of_checkpoints_that_may_not_be_read_is_not_taken_for_an_empty_one(shown):
    """Broken: the run begins anew."""
    shown.checkpoints.chmod(0)
    error = as_nobody(lambda: restored(shown, "full"))
    assert isinstance(error, CheckpointError)
    assert str(error) == f"Permission denied: {shown.checkpoints}"
