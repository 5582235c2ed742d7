"""`slurmtrain ckpt list` and `show`: what is told of checkpoints without reading them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from slurmtrain.resilience.records import AttemptRecord, write_attempt
from slurmtrain.store.aside import set_aside
from slurmtrain.store.leases import lease
from slurmtrain.store.local import LocalNewest, make_rules, tell_newest
from slurmtrain.store.manifest import MANIFEST_NAME
from tests.checkpoint.stored import store
from tests.cli.ckpts import LAYOUT, TENSORS, make_run, save
from tests.cli.desk import Desk, one_line_of

DAY = 86400


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def run(desk):
    run = make_run(desk, purge_days=30, every_steps=10, keep=2, keep_every_steps=40)
    save(desk, run, 10, 20, 30, 40)
    return run


def listed(desk: Desk, word: str = "job") -> dict[int, dict]:
    result = desk.type("ckpt", "list", word, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["v"], told["run"]) == (1, "job")
    return {row["step"]: row for row in told["checkpoints"] if not row["aside"]} | {"durable": told["durable"]}


def test_what_is_told_of_each(desk, run):
    rows = listed(desk)
    assert list(rows) == [10, 20, 30, 40, "durable"]
    row = rows[40]
    folder = run.checkpoint(40)
    assert row["path"] == str(folder)
    assert row["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert (row["files"], row["tokens"], row["attempt"], row["age_s"], row["tier"]) == (3, 320, 1, 0.0, "shared")
    assert (row["layout"], row["problem"], row["verified"]) == (LAYOUT, "", None)
    table = desk.type("ckpt", "list", "job").stdout.splitlines()
    assert table[-1].split()[:9] == ["40", "0", "s", *size_of(row["bytes"]), "3", "tp2", "pp2", "dp4"]
    assert "fsdp  sizes" in table[-1]


def size_of(count: int) -> list[str]:
    return [f"{count / 1024:.1f}", "KiB"]


def test_what_goes_next_and_what_is_in_use(desk, run):
    """keep = 2 and multiples of 40 stay: once 50 is there, 10, 20 and 30 go. Broken: the next save left out, 30 would stay."""
    assert [step for step, row in listed(desk).items() if step != "durable" and row["goes_next"]] == [10, 20, 30]
    with lease(run, 20, "a reader", clock=desk.clock):
        rows = listed(desk)
        assert [step for step in (10, 20, 30, 40) if rows[step]["goes_next"]] == [10, 30]
        assert [step for step in (10, 20, 30, 40) if rows[step]["in_use"]] == [20]
        assert "in use" in desk.type("ckpt", "list", "job").stdout
    assert not listed(desk)[20]["in_use"]


def test_one_that_cannot_be_looked_at_hides_no_other(desk, run):
    """Broken: an error of the folder, or of a file in it, passed on: nothing is listed, or that one is left out."""
    run.checkpoint(50).symlink_to(run.checkpoint(50).name)
    run.checkpoint(60).write_text("a file")
    run.checkpoint(70).symlink_to("nowhere")
    lost = run.checkpoint(30) / "rank-00001.h5"
    lost.unlink()
    lost.symlink_to("nowhere")
    rows = listed(desk)
    assert (list(rows), rows["durable"]) == ([10, 20, 30, 40, 50, 60, 70, "durable"], 40)
    reasons = {step: rows[step]["problem"].rpartition(": ")[2] for step in (30, 40, 50, 60, 70)}
    gone = "No such file or directory"
    assert reasons == {30: gone, 40: "", 50: "Too many levels of symbolic links", 60: "Not a directory", 70: gone}
    shown = desk.type("ckpt", "show", "job@30")
    assert (shown.exit_code, f"rank-00001.h5: {gone}" in shown.stdout) == (0, True), shown.output


def test_one_under_another_steps_name_is_no_durable_one(desk, run):
    """It would not be loaded. Broken: sizes compared alone, 50 were the newest durable, and taken to go on from."""
    run.checkpoint(40).rename(run.checkpoint(50))
    rows = listed(desk)
    assert (rows["durable"], rows[50]["problem"]) == (30, "manifest.json: step 40 in a folder of step 50")


def test_damaged_ones_are_not_durable(desk, run):
    path = run.checkpoint(40) / "rank-00001.h5"
    path.write_bytes(path.read_bytes()[:-1])
    (run.checkpoint(30) / MANIFEST_NAME).unlink()
    rows = listed(desk)
    assert rows["durable"] == 20
    assert [step for step in (10, 20, 30, 40) if rows[step]["durable"]] == [20]
    assert rows[40]["problem"].startswith("rank-00001.h5: ")
    assert MANIFEST_NAME in rows[30]["problem"]
    assert rows[30]["tokens"] is None
    lines = desk.type("ckpt", "list", "job").stdout.splitlines()
    assert "newest durable" in lines[2]
    assert "rank-00001.h5: " in lines[4]


def test_those_set_aside_are_marked_with_why(desk, run):
    set_aside(run, 30, "rank-00000.h5: 5 bytes, 9 were written", clock=desk.clock)
    told = json.loads(desk.type("ckpt", "list", "job", "--json").stdout)["checkpoints"]
    assert [(row["step"], row["why"]) for row in told if row["aside"]] == [(30, "rank-00000.h5: 5 bytes, 9 were written")]
    assert "set aside: rank-00000.h5: 5 bytes" in desk.type("ckpt", "list", "job").stdout
    store(run.checkpoint(30), 30, TENSORS)
    assert [row["step"] for row in json.loads(desk.type("ckpt", "list", "job", "--json").stdout)["checkpoints"]] == [10, 20, 30, 30, 40]


def test_the_site_purges_the_file_that_nobody_touched_for_the_longest(desk, run):
    now = desk.clock.time()
    folder = run.checkpoint(40)
    for path in folder.iterdir():
        os.utime(path, (now, now))
    os.utime(folder / "rank-00000.h5", (now - 3 * DAY, now - 5 * DAY))
    assert listed(desk)[40]["purge_t"] == pytest.approx(now + 27 * DAY)
    assert "in 27 d" in desk.type("ckpt", "list", "job").stdout.splitlines()[-1]
    os.utime(folder / "rank-00000.h5", (now - 31 * DAY, now - 31 * DAY))
    assert " due " in desk.type("ckpt", "list", "job").stdout.splitlines()[-1]
    assert "if nobody touches its files" in desk.type("ckpt", "show", "job").stdout


def test_the_newest_on_the_nodes_own_disks(desk, run):
    make_rules(run)
    tell_newest(run, LocalNewest(55, 1, desk.clock.time() - 30, ("n1", "n2")))
    assert json.loads(desk.type("ckpt", "list", "job", "--json").stdout)["local"] == {
        "step": 55, "attempt": 1, "t": desk.clock.time() - 30, "nodes": ["n1", "n2"],
    }  # fmt: skip
    line = desk.type("ckpt", "list", "job").stdout.splitlines()[-1].rstrip()
    assert line.split(maxsplit=4) == ["55", "30", "s", "local", "newest on the disks of n[1-2]"]


def test_a_run_without_checkpoints_and_one_that_is_none(desk):
    make_run(desk)
    result = desk.type("ckpt", "list", "job")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "run job has no checkpoint yet" in result.stderr
    assert json.loads(desk.type("ckpt", "list", "job", "--json").stdout)["checkpoints"] == []
    assert "no run 'jop' under" in one_line_of(desk.type("ckpt", "list", "jop"))
    assert "'job@40' is a checkpoint, and a run is asked for: leave @40 out" in one_line_of(desk.type("ckpt", "list", "job@40"))


def test_a_folder_that_cannot_be_read_is_one_line(desk, run, monkeypatch):
    scandir = os.scandir

    def refused(path="."):
        if str(path) == str(run.checkpoints):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    for words in (("list", "job"), ("show", "job"), ("verify", "job@10")):
        assert f"{run.checkpoints}: Permission denied" in one_line_of(desk.type("ckpt", *words))


def shown(desk: Desk, *words) -> dict:
    result = desk.type("ckpt", "show", *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_show_tells_what_is_in_it(desk, run):
    told = shown(desk, "job")
    assert (told["step"], told["tokens"], told["run"], told["attempt"], told["layout"]) == (40, 320, "job", 1, LAYOUT)
    assert told["kinds"] == {
        "model": {"tensors": 2, "elements": 68, "bytes": 60 * 4 + 8 * 2, "dtypes": {"float32": 1, "bfloat16": 1}},
        "optimizer": {"tensors": 1, "elements": 60, "bytes": 240, "dtypes": {"float32": 1}},
        "rng": {"tensors": 1, "elements": 40, "bytes": 40, "dtypes": {"uint8": 1}},
    }
    assert told["files"] == {path.name: path.stat().st_size for path in sorted(run.checkpoint(40).glob("*.h5"))}
    lines = desk.type("ckpt", "show", "job@20").stdout.splitlines()
    assert lines[0] == f"checkpoint  {run.checkpoint(20)}"
    assert "step        20" in lines
    assert "layout      tp2 pp2 dp4 fsdp (world 16)" in lines
    assert "model       2 tensors of 68 elements, 256 B: 1 float32, 1 bfloat16" in lines


def test_show_lists_tensors_and_the_boxes_that_tile_them(desk, run):
    told = shown(desk, "job", "--tensors")["tensors"]
    assert told["model/w"]["shape"] == [6, 10]
    assert [(box["offset"], box["shape"]) for box in told["model/w"]["boxes"]] == [([0, 0], [3, 10]), ([3, 0], [3, 10])]
    assert told["model/half"]["dtype"] == "bfloat16"
    path = run.checkpoint(40) / told["model/w"]["boxes"][1]["file"]
    data = path.read_bytes()[told["model/w"]["boxes"][1]["at"] :][: 30 * 4]
    np.testing.assert_array_equal(np.frombuffer(data, np.float32), np.arange(30, 60))
    lines = desk.type("ckpt", "show", "job", "--tensors").stdout.splitlines()
    assert lines[lines.index("model/w  float32 [6, 10]") + 2] == f"    [3, 0] [3, 10] in {path.name}"


def test_show_tells_configuration_versions_and_state(desk, run):
    """What may be secret travels in no checkpoint, and is not told as a difference."""
    now = json.loads(run.job_json.read_text())
    run.job_json.write_text(json.dumps({**now, "environment": {"TOKEN": "secret"}}))
    config = {**now, "training": {**now["training"], "steps": 105}}
    config.pop("environment")
    state = {"v": 1, "position": 77, "job": config, "versions": {"torch": "2.13.0", "slurmtrain": "0.1.0"}, "code": "c0de"}
    store(run.checkpoint(50), 50, TENSORS, state=state)
    told = shown(desk, "job")
    want = hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    assert told["config_sha256"] == want
    assert told["config_changed"] == ["training.steps: 105 -> 100"]
    assert told["versions"] == state["versions"]
    assert told["state"] == {"position": 77, "code": "c0de"}
    text = desk.type("ckpt", "show", "job").stdout
    assert f"sha256 {want[:16]}; job.json of today: training.steps: 105 -> 100" in text
    assert "torch 2.13.0" in text
    assert "state       position 77, code c0de" in text


def test_versions_of_an_older_checkpoint_are_those_of_its_attempt(desk, run):
    run.attempt(1).create()
    write_attempt(run, desk.disk, AttemptRecord(1, "1", 0, 0.0, (), (), 1, 1, "3.11.7", {"torch": "2.12.0"}, "0.0.9", None))
    assert shown(desk, "job")["versions"] == {"slurmtrain": "0.0.9", "python": "3.11.7", "torch": "2.12.0"}


def test_show_of_a_folder_by_itself(desk, tmp_path):
    folder = tmp_path / "archive" / "step-00000007"
    store(folder, 7, TENSORS)
    told = shown(desk, folder)
    assert (told["run"], told["step"], told["purge_t"], told["versions"]) == (None, 7, None, {})


def test_show_of_what_is_not_there_or_damaged(desk, run):
    assert "run job has no checkpoint of step 25: there are 10, 20, 30, 40" in one_line_of(desk.type("ckpt", "show", "job@25"))
    folder = set_aside(run, 20, "why not", clock=desk.clock)
    assert f"there are 10, 30, 40; of step 20 {folder} was set aside" in one_line_of(desk.type("ckpt", "show", "job@20"))
    assert shown(desk, folder)["step"] == 20
    path = run.checkpoint(40) / MANIFEST_NAME
    path.write_bytes(path.read_bytes().replace(b'"tokens":320', b'"tokens":321'))
    line = one_line_of(desk.type("ckpt", "show", "job"), code=1)
    assert f"{path}: its bytes are not those that were written" in line


PROBE = """
import json, sys
from slurmtrain.cli.main import main
archive = sys.argv[1] + "/../archive"
for line in ("list job", "prune job --dry-run", "now job", "show job", "verify job", "diff job@10 job@20", "copy job " + archive):
    words = line.split()
    try:
        main(["ckpt", *words, "--root", sys.argv[1]])
    except SystemExit as end:
        print("\\n" + json.dumps([words[0], end.code, sorted({"torch", "mpi4py", "h5py", "safetensors", "numpy"} & set(sys.modules))]))
"""


def test_torch_is_not_loaded(desk, run):
    """Nor HDF5 by those that read no tensors; numpy where tensors are counted or read."""
    command = [sys.executable, "-c", PROBE, str(desk.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, **desk.env})
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert told[:5] == [["list", 0, []], ["prune", 0, []], ["now", 2, []], ["show", 0, ["numpy"]], ["verify", 0, ["numpy"]]]
    assert [(word, code, "torch" in loaded) for word, code, loaded in told[5:]] == [("diff", 0, False), ("copy", 0, False)]
