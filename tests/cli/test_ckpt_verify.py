"""`slurmtrain ckpt verify` and `diff`: what is damaged, and what differs."""

from __future__ import annotations

import json
import os
import subprocess
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from slurmtrain.store.aside import set_aside
from slurmtrain.store.leases import leased
from slurmtrain.store.manifest import MANIFEST_NAME
from tests.checkpoint.stored import cut_columns, flip, store
from tests.cli.ckpts import TENSORS, make_run, save
from tests.cli.desk import Desk, one_line_of
from tests.cli.test_weights import Keeping


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def run(desk):
    run = make_run(desk)
    save(desk, run, 10, 20)
    return run


def test_what_is_as_it_was_written(desk, run):
    result = desk.type("ckpt", "verify", "job@10")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("job@10: as it was written (full): 2 files, ")
    assert result.stderr == ""
    assert desk.type("ckpt", "verify", "job").stdout.startswith("job@20: ")
    assert not list(run.leases.iterdir())


def test_all_of_them_the_newest_first(desk, run):
    flip(run.checkpoint(10) / MANIFEST_NAME, 40)
    result = desk.type("ckpt", "verify", "job", "--all", "--policy", "sizes")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("job@20: as it was written (sizes)")
    assert lines[1].startswith(f"job@10: {run.checkpoint(10) / MANIFEST_NAME}: ")
    assert lines[2] == "1 of 2 are as they were written"
    assert "--all means every checkpoint of the run" in one_line_of(desk.type("ckpt", "verify", "job@10", "--all"))


def test_every_problem_is_told_with_file_and_tensor(desk, run):
    """Bits in two chunks of one file, one of them in HDF5's own bytes; another file is short. Broken: only the first problem told."""
    folder = run.checkpoint(30)
    big = {"model/w": np.zeros((3 << 20,), np.float32), "model/v": np.zeros((1 << 20,), np.float32), "optimizer/b": np.ones(9, np.float32)}
    manifest = store(folder, 30, big)
    second = {name: entry.boxes[0].at for name, entry in manifest.tensors.items()}
    path = folder / "rank-00000.h5"
    flip(path, 8)
    flip(path, second["model/v"] + (1 << 22) - 1)
    result = desk.type("ckpt", "verify", "job")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    chunks = sorted({0, (second["model/v"] + (1 << 22) - 1) >> 23})
    assert [line.split(" (bytes")[0] for line in lines] == [f"job@30: rank-00000.h5: chunk {i}" for i in chunks]
    for i, line in zip(chunks, lines, strict=True):
        lies = {
            name
            for name, at in second.items()
            for byte in (at, at + big[name].nbytes - 1, i << 23)
            if at <= byte < at + big[name].nbytes and byte >> 23 == i
        }
        assert line.partition(" differs from what was written: there lies ")[2].split(", ") == sorted(lies, key=second.get)
    path.write_bytes(path.read_bytes()[:-1])
    (line,) = desk.type("ckpt", "verify", "job").stdout.splitlines()
    assert line.startswith("job@30: rank-00000.h5: ")
    assert line.endswith(" were written: the file holds model/w, optimizer/b, model/v")


def test_sampled_looks_at_every_8th_piece(desk, run):
    folder = run.checkpoint(30)
    manifest = store(folder, 30, {"model/w": np.zeros((10 << 20,), np.float32)})
    assert len(manifest.files["rank-00000.h5"].xxh3_64) > 5
    flip(folder / "rank-00000.h5", 9 << 20)
    assert desk.type("ckpt", "verify", "job", "--policy", "sampled").exit_code == 0
    assert desk.type("ckpt", "verify", "job").exit_code == 1


@pytest.mark.parametrize(
    "words, work",
    [
        (("verify", "job@10"), "damage.damage"),
        (("diff", "job@10", "job@20"), "diff.compare"),
        (("copy", "job@20", "./archive"), "copying.copy_checkpoint"),
    ],
)
def test_what_is_read_is_leased_while_it_is(desk, run, monkeypatch, words, work):
    monkeypatch.chdir(desk.folder)
    module, _, name = f"slurmtrain.checkpoint.{work}".rpartition(".")
    real, seen = getattr(import_module(module), name), []
    monkeypatch.setattr(f"{module}.{name}", lambda *args, **more: (seen.append(leased(run, desk.clock.time())), real(*args, **more))[1])
    assert desk.type("ckpt", *words).exit_code == 0
    assert seen == [{int(word[4:]) for word in words if word.startswith("job@")}]
    assert leased(run, desk.clock.time()) == set()


def test_a_run_that_may_not_be_written_is_read_all_the_same(desk, run, monkeypatch):
    monkeypatch.setattr(
        "slurmtrain.store.leases.SystemDisk.write", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
    )
    desk.disk.faults["append"] = None
    result = desk.type("ckpt", "verify", "job@10")
    assert result.exit_code == 0, result.output
    assert result.stderr == f"note: {run.leases}: Permission denied: read without a lease, so the run may remove step 10 meanwhile\n"


def test_a_folder_by_itself_and_files_that_do_not_belong_there(desk, run):
    (run.checkpoint(10) / "notes.txt").write_text("mine")
    result = desk.type("ckpt", "verify", run.checkpoint(10))
    assert result.exit_code == 0
    assert result.stderr == f"note: {run.checkpoint(10)}/notes.txt is none of its files\n"
    folder = set_aside(run, 10, "why", clock=desk.clock)
    (folder / "notes.txt").unlink()
    result = desk.type("ckpt", "verify", folder)
    assert (result.exit_code, result.stderr) == (0, "")


def test_the_list_remembers_what_was_verified(desk, run):
    assert "sizes" in desk.type("ckpt", "list", "job").stdout
    desk.type("ckpt", "verify", "job", "--policy", "sampled")
    desk.clock.advance(7200)
    desk.type("ckpt", "verify", "job@10")
    desk.clock.advance(600)
    rows = {row["step"]: row for row in json.loads(desk.type("ckpt", "list", "job", "--json").stdout)["checkpoints"]}
    now = desk.clock.time()
    assert rows[10]["verified"] == {"t": now - 600, "policy": "full", "good": True}
    assert rows[20]["verified"] == {"t": now - 7800, "policy": "sampled", "good": True}
    assert "full, 10 min ago" in desk.type("ckpt", "list", "job").stdout
    flip(run.checkpoint(10) / "rank-00000.h5", 2048)
    desk.type("ckpt", "verify", "job@10")
    line = desk.type("ckpt", "list", "job").stdout.splitlines()[1]
    assert "slurmtrain ckpt verify tells which" in line
    desk.type("ckpt", "verify", "job@10", "--policy", "sizes")
    assert desk.type("ckpt", "list", "job").stdout.splitlines()[1] == line, "sizes alone take nothing back"


def test_what_is_known_to_be_damaged_is_not_called_durable(desk, run):
    """A run would pass it over. Broken: sizes alone decide, and the mark stays with it."""
    assert json.loads(desk.type("ckpt", "list", "job", "--json").stdout)["durable"] == 20
    flip(run.checkpoint(20) / "rank-00000.h5", 2048)
    desk.type("ckpt", "verify", "job@20")
    assert json.loads(desk.type("ckpt", "list", "job", "--json").stdout)["durable"] == 10


def test_a_step_that_was_written_again_is_not_verified_by_what_was_before(desk, run):
    desk.type("ckpt", "verify", "job")
    set_aside(run, 20, "why", clock=desk.clock)
    desk.clock.advance(100)
    save(desk, run, 20)
    rows = json.loads(desk.type("ckpt", "list", "job", "--json").stdout)["checkpoints"]
    assert [row["verified"] for row in rows if row["step"] == 20 and not row["aside"]] == [None]


def test_a_batch_job_verifies_what_the_command_says(desk, run, monkeypatch):
    monkeypatch.chdir(desk.folder)
    desk.slurm = Keeping(desk.clock)
    flip(run.checkpoint(20) / "rank-00001.h5", 2048)
    result = desk.type("ckpt", "verify", "job", "--all", "--batch", "-t", "2h")
    assert result.stdout == "Submitted batch job 1\n", result.output
    assert result.stderr == f"output {desk.folder}/slurm-verify-job-step-00000020-1.out\n"
    done = subprocess.run(["bash", "-s"], input=desk.slurm.text, text=True, capture_output=True, cwd="/", check=False, env=dict(os.environ))
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("job@20: rank-00001.h5: chunk 0")
    assert lines[-1] == "1 of 2 are as they were written"


OLD = Path(__file__).parents[1] / "checkpoint" / "releases" / "format-1" / "step-00000040"


def test_checkpoints_of_the_first_format(desk, tmp_path):
    assert desk.type("ckpt", "verify", OLD).exit_code == 0
    assert "layout      2 ranks\n" in desk.type("ckpt", "show", OLD).stdout
    assert desk.type("ckpt", "copy", OLD, tmp_path / "copies").exit_code == 0
    copy = tmp_path / "copies" / OLD.name
    result = desk.type("ckpt", "diff", OLD, copy)
    assert (result.exit_code, result.stdout) == (0, "identical: 7 tensors, bit for bit\n")
    flip(copy / "rank-00001.h5", 5000)
    result = desk.type("ckpt", "verify", copy)
    assert result.exit_code == 1
    assert f"{copy}: rank-00001.h5: chunk 0 (bytes from 0) differs from what was written: the file holds model/" in result.stdout


def other(run, step, changes, **how):
    tensors = {**TENSORS, **changes}
    store(run.checkpoint(step), step, {name: one for name, one in tensors.items() if one is not None}, **how)


def diffed(desk, *words) -> tuple[int, dict]:
    result = desk.type("ckpt", "diff", *words, "--json")
    assert result.exit_code in {0, 1}, result.output
    return result.exit_code, json.loads(result.stdout)


def test_the_same_tensors_under_another_layout_are_identical(desk, run):
    other(run, 30, {}, files=3, cut=cut_columns)
    result = desk.type("ckpt", "diff", "job@20", "job@30")
    assert (result.exit_code, result.stdout) == (0, "identical: 4 tensors, bit for bit\n")
    assert result.stderr.splitlines() == ["note: step 20 / 30", "note: tokens 160 / 240"]
    assert not list(run.leases.iterdir())
    code, told = diffed(desk, "job@20", "job@30")
    assert (code, told["identical"], told["tensors"], told["equal"], told["differing"]) == (0, True, 4, 4, [])
    assert told["state"] == {"step": [20, 30], "tokens": [160, 240]}


def test_plain_values_that_differ_are_told_and_do_not_count(desk, run):
    for step, lr in ((30, 1e-3), (40, 2e-3)):
        other(run, step, {}, tokens=5, state={"position": step, "job": {"optimizer": {"lr": lr, "name": "adamw"}}})
    result = desk.type("ckpt", "diff", "job@30", "job@40")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == ["note: step 30 / 40", "note: position 30 / 40", "note: job.optimizer.lr 0.001 / 0.002"]
    assert diffed(desk, "job@30", "job@40")[1]["state"]["job.optimizer.lr"] == [0.001, 0.002]


def test_what_one_side_has_nothing_of_is_one_line(desk, run):
    """Weights from elsewhere have no job. Broken: each of its keys is a line."""
    other(run, 30, {}, tokens=160, state={"job": {"optimizer": {"lr": 0.1, "name": "adamw"}}, "origin": None})
    result = desk.type("ckpt", "diff", "job@20", "job@30")
    assert result.stderr.splitlines() == ["note: step 20 / 30", 'note: job null / {"optimizer": {"lr": 0.1, "name": "adamw"}}']
    assert diffed(desk, "job@20", "job@30")[1]["state"]["job"] == [None, {"optimizer": {"lr": 0.1, "name": "adamw"}}]


def test_what_differs_is_told_tensor_by_tensor(desk, run):
    w = TENSORS["model/w"].copy()
    w[2, 3] += 0.5
    w[0, 0] = np.nan
    average = TENSORS["optimizer/w/exp_avg"].astype(np.float64)
    other(run, 30, {"model/w": w, "optimizer/w/exp_avg": average, "model/half": None, "model/new": np.zeros((2, 2), np.float32)})
    result = desk.type("ckpt", "diff", "job@20", "job@30")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "model/half  only in A",
        "model/new  only in B",
        "model/w  2 of 60 elements, max abs 0.5 at [2, 3], max rel 0.0212766, 1 NaN on one side",
        "optimizer/w/exp_avg  type float32 / float64, the same values",
        "different: 4 of 5 tensors; max abs 0.5, max rel 0.0212766, 1 elements NaN on one side",
    ]
    code, told = diffed(desk, "job@30", "job@20", "--only", "model")
    assert code == 1
    assert {one["name"]: (one["differing"], one["max_abs"], one["at"]) for one in told["differing"]} == {
        "model/half": (0, 0.0, None),
        "model/new": (0, 0.0, None),
        "model/w": (2, 0.5, [2, 3]),
    }
    assert told["max_rel"] == pytest.approx(0.5 / 23.5)
    assert (told["lone_nans"], told["tensors"], told["equal"]) == (1, 3, 0)
    assert diffed(desk, "job@30", "job@20", "--only", "rng")[0] == 0


def test_infinities_are_words_in_json_and_many_lines_are_cut(desk, run):
    w = TENSORS["model/w"].copy()
    w[5, 9] = np.inf
    many = {f"model/more.{i}": np.zeros(2, np.float32) for i in range(50)}
    other(run, 30, {"model/w": w, **many})
    assert diffed(desk, "job@20", "job@30")[1]["max_abs"] == "inf"
    lines = desk.type("ckpt", "diff", "job@20", "job@30").stdout.splitlines()
    assert lines[-2:] == ["... and 11 more (--all)", "different: 51 of 54 tensors; max abs inf, max rel inf"]
    assert len(desk.type("ckpt", "diff", "job@20", "job@30", "--all").stdout.splitlines()) == 52


def test_random_states_of_other_places_alone_are_explained(desk, run):
    other(run, 30, {"rng/pp0-dp0-ep0-cp0-tp0/cpu": None, "rng/pp1-dp0-ep0-cp0-tp0/cpu": np.zeros(40, np.uint8)})
    result = desk.type("ckpt", "diff", "job@20", "job@30")
    assert result.exit_code == 1
    assert "--only model,optimizer,ema compares the others" in result.stderr
    assert desk.type("ckpt", "diff", "job@20", "job@30", "--only", "model,optimizer,ema").exit_code == 0


def test_trouble_is_2_as_of_diff(desk, run):
    """Broken: a damaged one ends with 1, which says that they differ."""
    save(desk, run, 30)
    flip(run.checkpoint(30) / "rank-00001.h5", 2048)
    assert "rank-00001.h5" in one_line_of(desk.type("ckpt", "diff", "job@20", "job@30"), code=2)
    (run.checkpoint(30) / "rank-00001.h5").unlink()
    assert "rank-00001.h5: No such file" in one_line_of(desk.type("ckpt", "diff", "job@30", "job@20"), code=2)
    assert "'weights' is no kind of tensor" in one_line_of(desk.type("ckpt", "diff", "job@20", "job@10", "--only", "weights"))
    assert "nothing was compared" in one_line_of(desk.type("ckpt", "diff", "job@20", "job@10", "--only", "ema"))
    assert "no run 'jop'" in one_line_of(desk.type("ckpt", "diff", "job", "jop"))
