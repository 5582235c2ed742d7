"""Precedence of file, preset, --set, options; how texts become values; paths. Broken: a run trains with other settings than it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.config.load import load_job
from slurmtrain.errors import ConfigError
from tests.config.bad_files import GOOD_JOB

ENV = {"HOME": "/home/ada", "SCRATCH": "/lustre/ada"}


@pytest.fixture
def load(tmp_path):
    def load(*edits, sets=(), options=None, name="first-run.toml", env=ENV):
        text = GOOD_JOB
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_text(text)
        return load_job(path, sets=sets, options=options, env=env, policy_path=tmp_path / "none.toml")

    return load


def test_defaults_and_name_of_the_run(load):
    job = load()
    assert (job.run.name, job.training.steps, job.optimizer.lr, job.checkpoint.keep) == ("first-run", 100, 1e-3, 3)
    assert (job.slurm.nodes, job.slurm.spares, job.slurm.time, job.parallel.dp) == (2, 0, None, None)


def test_the_files_name_is_refused_where_it_cannot_name_a_run(load):
    with pytest.raises(ConfigError, match=r"run\.name: the file's name 'my job' cannot name a run"):
        load(name="my job.toml")


def test_a_byte_order_mark_is_no_fault(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbf" + GOOD_JOB.encode())
    assert load_job(tmp_path / "a.toml", env=ENV, policy_path=tmp_path / "none").run.name == "a"


def test_preset_lies_under_what_the_job_says(load):
    model = load(('"tiny"', '"llama3-8b"\nlayers = 4\nvocab = 320')).model
    assert (model.layers, model.vocab, model.hidden, model.heads, model.kv_heads, model.head_dim) == (4, 320, 4096, 32, 8, 128)
    assert model.preset == "llama3-8b"


def test_head_dim_follows_a_changed_hidden(load):
    assert load(sets=["model.hidden=128"]).model.head_dim == 32
    assert load(sets=["model.head_dim=64"]).model.head_dim == 64


def test_set_may_choose_the_preset(load):
    assert load(sets=["model.preset=llama2-7b"]).model.hidden == 4096


def test_options_win_over_set_and_set_over_the_file(load):
    assert load(sets=["slurm.nodes=3"]).slurm.nodes == 3
    assert load(sets=["slurm.nodes=3"], options={"slurm.nodes": 4}).slurm.nodes == 4
    assert load(sets=["training.steps=3", "training.steps=5"]).training.steps == 5


def test_an_option_that_was_not_given_says_nothing(load):
    assert load(options={"slurm.nodes": None, "slurm.partition": None}).slurm.nodes == 2


def test_extra_options_add_to_the_files(load):
    edit = ("nodes = 2", 'nodes = 2\nextra = ["--mail-type=END"]')
    assert load(edit, options={"slurm.extra": ("--nice=5",)}).slurm.extra == ("--mail-type=END", "--nice=5")
    assert load(options={"slurm.extra": ("--nice=5",)}).slurm.extra == ("--nice=5",)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("training.steps=500", ("training", "steps"), 500),
        ("optimizer.lr=3e-4", ("optimizer", "lr"), 3e-4),
        ("optimizer.lr=1", ("optimizer", "lr"), 1.0),
        ("training.deterministic=true", ("training", "deterministic"), True),
        ("optimizer.betas=[0.8, 0.99]", ("optimizer", "betas"), (0.8, 0.99)),
        ("parallel.dp_mode=fsdp", ("parallel", "dp_mode"), "fsdp"),
        ('parallel.dp_mode="fsdp"', ("parallel", "dp_mode"), "fsdp"),
        ("slurm.time=01:00:00", ("slurm", "time"), "01:00:00"),
        ("slurm.time=30", ("slurm", "time"), "30"),
        ("slurm.time=1-12:00:00", ("slurm", "time"), "1-12:00:00"),
        ("slurm.array=1-4%1", ("slurm", "array"), "1-4%1"),
        ("slurm.account=2024", ("slurm", "account"), "2024"),
        ("run.name=2024-01-01", ("run", "name"), "2024-01-01"),
        ("slurm.account=true", ("slurm", "account"), "true"),
        ("slurm.constraint=a=b", ("slurm", "constraint"), "a=b"),
        ("slurm.nodelist=n[1-4,7]", ("slurm", "nodelist"), "n[1-4,7]"),
    ],
)
def test_set_reads_values_as_toml_and_falls_back_to_text(load, text, key, value):
    section, name = key
    assert getattr(getattr(load(sets=[text]), section), name) == value


def test_set_of_a_variable_is_verbatim(load):
    texts = ["environment.A=1,2", "environment.B=it's $HOME", "environment.C=007", "environment.D=", "environment.E=64(x2)"]
    assert load(sets=texts).environment == {"A": "1,2", "B": "it's $HOME", "C": "007", "D": "", "E": "64(x2)"}


def test_set_adds_an_evaluation_set(load):
    """Broken: a table of free names could be filled in the file alone."""
    sets = load(sets=["evaluation.sets.held=007", "evaluation.sets.other=/e"]).evaluation.sets
    assert {name: path.name for name, path in sets.items()} == {"held": "007", "other": "e"}
    assert all(path.is_absolute() for path in sets.values())


def test_set_cannot_smuggle_a_second_key(load):
    for text in ("slurm.account=1\nqos = 'x'", "slurm.account='a'\nother = 1"):
        with pytest.raises(ConfigError, match="must be one line"):
            load(sets=[text])


def test_numbers_in_environment_become_text(load):
    assert load(("[slurm]", "[environment]\nOMP_NUM_THREADS = 4\n\n[slurm]")).environment == {"OMP_NUM_THREADS": "4"}


@pytest.mark.parametrize(
    ("nodes", "sets", "options", "expected"),
    [
        ('"8-10"', (), {}, (8, 2)),
        ('"8"', (), {}, (8, 0)),
        ('"8-8"', (), {}, (8, 0)),
        ("8\nspares = 1", (), {}, (8, 1)),
        ('"8-10"', (), {"slurm.nodes": "4"}, (4, 0)),
        ("8\nspares = 1", (), {"slurm.nodes": "4-7"}, (4, 3)),
        ("8\nspares = 1", ["slurm.nodes=4"], {}, (4, 1)),
        ('"8-10"', ["slurm.spares=0"], {}, (8, 0)),
    ],
)
def test_a_range_of_nodes_means_spares_and_the_last_word_counts(load, nodes, sets, options, expected):
    slurm = load(("nodes = 2", f"nodes = {nodes}"), sets=sets, options=options).slurm
    assert (slurm.nodes, slurm.spares) == expected


def test_data_path_is_seen_from_the_job_file_and_absolute(load, tmp_path):
    assert load().data.path == tmp_path / "tokens"
    assert load(('"tokens"', '"../tokens"')).data.path == tmp_path.parent / "tokens"
    assert load(('"tokens"', '"$SCRATCH/${SCRATCH}x"')).data.path == Path("/lustre/ada//lustre/adax")
    assert load(('"tokens"', '"~/tokens"')).data.path == Path("/home/ada/tokens")


def test_python_is_a_path_only_where_it_looks_like_one(load, tmp_path):
    def python(text):
        return load(("[model]", f'python = "{text}"\n\n[model]')).python

    assert python("python3.12") == "python3.12"
    assert python("venv/bin/python") == str(tmp_path / "venv/bin/python")
    assert python("~/venv/bin/python") == "/home/ada/venv/bin/python"
    assert load().python is None


def test_a_link_to_an_interpreter_is_kept(load, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/usr/bin/env")
    assert load(("[model]", 'python = "bin/python"\n\n[model]')).python == str(tmp_path / "bin" / "python")


def test_missing_file_folder_and_unreadable(tmp_path):
    (tmp_path / "llama.toml").write_text(GOOD_JOB)
    with pytest.raises(ConfigError, match=r"lama.toml: no such job file; did you mean '.*llama.toml'\?"):
        load_job(tmp_path / "lama.toml")
    with pytest.raises(ConfigError, match=r"is a folder, not a job file: give one of its files, such as .*llama.toml"):
        load_job(tmp_path)
    with pytest.raises(ConfigError, match=r"no such job file$"):
        load_job(tmp_path / "none" / "lama.toml")
    with pytest.raises(ConfigError, match="is not a regular file"):
        load_job(Path("/dev/null"))
    with pytest.raises(ConfigError, match="cannot read this job file: Not a directory"):
        load_job(tmp_path / "llama.toml" / "x.toml")


def test_text_that_is_not_utf8_from_the_command_line_is_refused_in_words(load):
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(sets=["slurm.account=\udc80"])
