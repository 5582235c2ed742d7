"""`slurmtrain ckpt reshard | to-dcp | from-dcp | import | export`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as torch_checkpoint

from slurmtrain.checkpoint import rewrite
from slurmtrain.checkpoint.expected import of_job
from slurmtrain.cli.chosen import chosen
from slurmtrain.config.load import load_job
from slurmtrain.config.stored import read_job
from slurmtrain.rundir import RunDir
from slurmtrain.store.leases import leased
from slurmtrain.store.verify import read_manifest, verify
from tests.checkpoint.foreign import contents, same
from tests.checkpoint.stored import store
from tests.checkpoint.test_hf import saved
from tests.cli.ckpts import MODEL, make_run
from tests.cli.desk import Desk, one_line_of
from tests.cli.test_weights import Keeping

STATE = {"v": 1, "position": 8, "optimizer_updates": 5}
JOB = """
[model]
layers = 2
hidden = 32
heads = 2
kv_heads = 2
ffn = 48
vocab = 64
[data]
path = "tokens"
[training]
steps = 100
sequence_length = 32
global_batch = 8
"""


def tensors_of(run: RunDir) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(1)
    kinds = of_job(read_job(run.job_json), "").kinds
    random = numbers.integers(0, 255, 40).astype(np.uint8)
    return {name: numbers.random(shape, np.float32) for name, (shape, _) in kinds.items()} | {"rng/pp0-dp0-ep0-cp0-tp0/cpu": random}


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A run `job` with step 5, a run `other` of the same model without any, and a job file; people type in the desk's folder."""
    desk = Desk(tmp_path)
    run = make_run(desk, "job")
    make_run(desk, "other")
    store(run.checkpoint(5), 5, tensors_of(run), files=2, state=STATE, layout={"world": 2})
    desk.job_file.write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return desk


def whole(desk, *folders):
    """Each of these folders verifies and holds what step 5 of the run does."""
    for folder in folders:
        assert verify(folder) == []
        assert same(contents(folder), contents(desk.run().checkpoint(5))) == []


def succeeds(result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_reshard_into_a_folder_and_into_a_run(desk):
    lines = succeeds(desk.type("ckpt", "reshard", "job", "--out", "./moved", "--files", "3"))
    place = desk.folder / "moved" / "step-00000005"
    assert lines[0] == "step     5"
    assert lines[1].startswith(f"tensors  {len(tensors_of(desk.run()))}, ")
    assert lines[1].endswith(" in 3 files")
    assert lines[2] == f"folder   {place}"
    succeeds(desk.type("ckpt", "reshard", "job@5", "--out", "other", "--max-file-size", "20kB"))
    succeeds(desk.type("ckpt", "reshard", place, "--out", desk.folder / "again"))
    whole(desk, place, desk.run("other").checkpoint(5), desk.folder / "again" / "step-00000005")
    assert len(list(place.glob("*.h5"))) == 3
    assert len(list(desk.run("other").checkpoint(5).glob("*.h5"))) > 5
    assert len(list((desk.folder / "again" / "step-00000005").glob("*.h5"))) == 1, "5GB by itself"
    assert "already" in one_line_of(desk.type("ckpt", "reshard", "job", "--out", "other"))


def test_the_checkpoint_is_leased_while_it_is_read(desk, monkeypatch):
    seen, make = [], rewrite.make
    monkeypatch.setattr(rewrite, "make", lambda *a, **k: (seen.append(leased(desk.run(), desk.clock.time())), make(*a, **k))[1])
    succeeds(desk.type("ckpt", "reshard", "job", "--out", "./moved"))
    assert seen == [{5}]
    assert leased(desk.run(), desk.clock.time()) == set()


def test_to_pytorchs_format_and_back_as_a_run_of_its_own(desk):
    lines = succeeds(desk.type("ckpt", "to-dcp", "job@5", "--out", "dcp", "--files", "2"))
    assert lines[1].endswith(" in 2 files")
    target = {"model": {"head.weight": torch.zeros(64, 32)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_checkpoint.load(target, checkpoint_id=desk.folder / "dcp")
    assert torch.equal(target["model"]["head.weight"], torch.from_numpy(tensors_of(desk.run())["model/head.weight"]))
    succeeds(desk.type("ckpt", "from-dcp", "dcp", "--like", "job", "--out", "./back"))
    succeeds(desk.type("ckpt", "from-dcp", "dcp", "--job", "job.toml", "--out", "./from-job", "--files", "2"))
    succeeds(desk.type("ckpt", "from-dcp", "dcp", "--like", "job@5", "--out", "other"))
    runs = [RunDir(desk.folder / "back"), RunDir(desk.folder / "from-job"), desk.run("other")]
    whole(desk, *(run.checkpoint(5) for run in runs))
    for run in runs:
        manifest = read_manifest(run.checkpoint(5))
        assert (manifest.step, manifest.state, manifest.layout) == (5, STATE, {"world": 2})
        assert read_job(run.job_json).model == MODEL
    assert succeeds(desk.type("ckpt", "list", "./back"))
    assert succeeds(desk.type("status", "./back"))


def test_what_torch_alone_wrote_starts_runs(desk):
    weights = {name.partition("/")[2]: torch.from_numpy(one) for name, one in tensors_of(desk.run()).items() if name.startswith("model/")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_checkpoint.save({"model": weights, "optimizer": {"state.w.exp_avg": torch.ones(2)}}, checkpoint_id=desk.folder / "dcp")
    result = desk.type("ckpt", "from-dcp", "dcp", "--job", "job.toml", "--out", "./start")
    assert succeeds(result)[0] == "step     0"
    assert result.stderr == "note: torch alone wrote it, so the weights are taken, as of step 0: 1 tensor left out\n"
    assert desk.type("weights", "show", "./start").exit_code == 0
    refused = desk.type("ckpt", "from-dcp", "dcp", "--like", "job", "--out", "other")
    assert (
        'run other: it would go on from its newest checkpoint, and this has weights alone: name a new folder (model.weights = "run:FOLDER"'
        in (one_line_of(refused))
    )


def test_weights_of_transformers_become_a_run_from_which_others_start(desk):
    saved(desk.folder / "hub", {})
    table = desk.type("weights", "show", "hub").stdout
    desk.job_file.write_text(table + JOB[JOB.index("[data]") :])
    result = desk.type("ckpt", "import", "--hf", "hub", "--job", "job.toml", "--out", "./start", "--files", "2")
    lines = succeeds(result)
    assert lines[0] == "step     0"
    assert lines[1].endswith(" in 2 files")
    start = RunDir(desk.folder / "start")
    assert verify(start.checkpoint(0)) == []
    again = desk.folder / "again.toml"
    again.write_text('[model]\nweights = "run:start"\n' + JOB[JOB.index("[data]") :])
    job = load_job(again, env=desk.env)
    assert job.model.hidden == 48
    assert chosen(start, None).step == 0
    back = desk.type("ckpt", "export", "--hf", "start", "--out", "exported", "--root", desk.folder)
    assert succeeds(back)[0] == "step     0"
    theirs, ours = (
        {name: t for path in sorted((desk.folder / one).glob("*.safetensors")) for name, t in _load(path).items()}
        for one in ("hub", "exported")
    )
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)


def _load(path):
    from safetensors.torch import load_file

    return load_file(path)


def test_export_is_that_of_weights(desk):
    for words in (("ckpt", "export", "--hf", "job@5", "--out", "one"), ("weights", "export", "job", "--step", "5", "--out", "two")):
        succeeds(desk.type(*words, "--dtype", "bf16", "--max-shard-size", "20kB"))
    files = [{path.name: path.read_bytes() for path in (desk.folder / name).iterdir()} for name in ("one", "two")]
    assert files[0] == files[1]
    assert len(files[0]) > 3


MISTAKES = {
    "no such run": (("reshard", "jab", "--out", "./x"), 2, "no run 'jab' under"),
    "no such step": (("reshard", "job@7", "--out", "./x"), 2, "run job has no checkpoint of step 7: there are 5"),
    "no such place": (("reshard", "job", "--out", "x"), 2, "x: no such run, and no such folder: write ./x to make one"),
    "both sizes": (("reshard", "job", "--out", "./x", "--files", "2", "--max-file-size", "1GB"), 2, "--files and --max-file-size both say"),
    "no size": (("to-dcp", "job", "--out", "x", "--max-file-size", "big"), 2, "--max-file-size = 'big': must be a size such as 5GB"),
    "no files": (("to-dcp", "job", "--out", "x", "--files", "0"), 2, "0 is not in the range"),
    "taken": (("to-dcp", "job", "--out", "."), 2, ".: is there already"),
    "no such folder": (("from-dcp", "nowhere", "--like", "job", "--out", "./x"), 2, "nowhere/.metadata: No such file or directory"),
    "like what": (("from-dcp", "dcp", "--out", "./x"), 2, "give --like RUN, or --job JOB.toml (one of them)"),
    "like both": (("from-dcp", "dcp", "--like", "job", "--job", "job.toml", "--out", "./x"), 2, "(one of them)"),
    "job of none": (("from-dcp", "dcp", "--like", "moved/step-00000005", "--out", "./x"), 2, "what would be the job of this new run?"),
    "other model": (("from-dcp", "dcp", "--job", "other.toml", "--out", "./x"), 1, "dcp has no model.layers.2."),
    "no weights": (("import", "--hf", "nowhere", "--job", "job.toml", "--out", "./x"), 2, "--hf = "),
    "other weights": (("import", "--hf", "hub", "--job", "job.toml", "--out", "./x"), 2, "job.toml: model.weights = 'hub': "),
    "to what": (("export", "job", "--out", "x"), 2, "export to what? --hf writes Hugging Face's format"),
    "two steps": (("export", "--hf", "job@5", "--step", "5", "--out", "x"), 2, "job@5 says the step already: leave out --step"),
    "other run": (
        ("reshard", "job", "--out", "strange"),
        1,
        "job@5: model/embedding.weight (and 20 more) has shape (64, 32), (64, 64) in run strange",
    ),
}


@pytest.fixture
def messy(desk):
    """What the mistakes need."""
    succeeds(desk.type("ckpt", "to-dcp", "job", "--out", "dcp"))
    succeeds(desk.type("ckpt", "reshard", "job", "--out", "./moved"))
    (desk.folder / "other.toml").write_text(JOB.replace("layers = 2", "layers = 3"))
    saved(desk.folder / "hub", {})
    strange = make_run(desk, "strange")
    job = json.loads(strange.job_json.read_bytes())
    job["model"]["hidden"] = 64
    strange.job_json.write_text(json.dumps(job))
    return desk


def test_mistakes_are_one_line_and_make_nothing(messy):
    before = sorted(path.name for path in messy.folder.iterdir())
    for name, (words, code, says) in MISTAKES.items():
        for batch in ((), ("--batch",)):
            told = one_line_of(messy.type("ckpt", *words, *batch), code)
            assert says in told, (name, told)
    assert sorted(path.name for path in messy.folder.iterdir()) == before
    assert messy.slurm.submitted == []


def test_a_damaged_checkpoint_is_one_line(desk):
    file = desk.run().checkpoint(5) / "rank-00000.h5"
    data = bytearray(file.read_bytes())
    data[-9] ^= 4
    file.write_bytes(data)
    for words in (("reshard", "job", "--out", "./x"), ("to-dcp", "job", "--out", "x"), ("export", "--hf", "job@5", "--out", "x")):
        assert "rank-00000.h5: chunk 0" in one_line_of(desk.type("ckpt", *words), 1)
    file.write_bytes(data[:-1])
    for words in (("reshard", "job", "--out", "./x"), ("to-dcp", "job", "--out", "x")):
        assert f"step-00000005: rank-00000.h5: {len(data) - 1} bytes, {len(data)} were written" in one_line_of(desk.type("ckpt", *words), 1)
    assert not (desk.folder / "x").exists()


BATCH = {
    "reshard": (("reshard", "job", "--out", "./one/x", "--files", "3"), "one/x/step-00000005"),
    "to-dcp": (("to-dcp", "job", "--out", "one/x", "--max-file-size", "50kB"), "one/x"),
    "from-dcp": (("from-dcp", "dcp", "--like", "job", "--out", "./one/x", "--ignore", "nothing.*"), "one/x/checkpoints/step-00000005"),
    "import": (("import", "--hf", "hub", "--job", "hub.toml", "--out", "./one/x"), "one/x/checkpoints/step-00000000"),
}


@pytest.mark.parametrize("name", ["reshard", *(pytest.param(name, marks=pytest.mark.long) for name in BATCH if name != "reshard")])
def test_a_batch_job_does_what_the_command_says(messy, name):
    table = messy.type("weights", "show", "hub").stdout
    (messy.folder / "hub.toml").write_text(table + JOB[JOB.index("[data]") :])
    messy.slurm = Keeping(messy.clock)
    words, makes = BATCH[name]
    result = messy.type("ckpt", *words, "--batch", "-t", "2h")
    assert result.stdout == "Submitted batch job 1\n", result.output
    assert not (messy.folder / "one" / "x").exists(), "the command line itself makes nothing"
    env = {**os.environ, **messy.env}
    done = subprocess.run(["bash", "-s"], input=messy.slurm.text, text=True, capture_output=True, cwd="/", check=False, env=env)
    assert done.returncode == 0, done.stderr
    made = {path.name: path.read_bytes() for path in (messy.folder / makes).iterdir()}
    shutil.rmtree(messy.folder / "one" / "x")
    succeeds(messy.type("ckpt", *words))
    once = {path.name: path.read_bytes() for path in (messy.folder / makes).iterdir()}
    if name == "import":  # it says when it was made
        del made["manifest.json"], once["manifest.json"]
    assert made == once
