"""The run folder's paths are those of docs/formats.md, and no two of them meet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmtrain.rundir import AttemptDir, RunDir, valid_run_name

FORMATS = Path(__file__).resolve().parent.parent / "docs/formats.md"
RUN = RunDir(Path("/r/llama"))


def paths_of(folder: RunDir | AttemptDir) -> set[Path]:
    kind = type(folder)
    named = {name: value for name, value in vars(kind).items() if isinstance(value, property)}
    return {value for name in named if isinstance(value := getattr(folder, name), Path)}


def test_no_two_names_mean_the_same_path():
    for folder, count in ((RUN, 17), (RUN.attempt(1), 5)):
        assert len(paths_of(folder)) >= count
        assert len(paths_of(folder)) == sum(
            isinstance(getattr(folder, n), Path) for n, v in vars(type(folder)).items() if isinstance(v, property)
        )


def test_every_path_lies_in_the_folder():
    assert all(path.is_relative_to(RUN.path) for path in paths_of(RUN) | paths_of(RUN.attempt(12345)))


def test_the_paths_of_the_formats_page():
    documented = {
        "job.toml": RUN.job_toml, "job.json": RUN.job_json, "site.json": RUN.site_json, "plan.json": RUN.plan_json,
        "submit/request.json": RUN.request_json, "submit/exit_code": RUN.exit_code, "owner.json": RUN.owner_json,
        "attempts/NNNN/attempt.json": RUN.attempt(3).attempt_json, "attempts/NNNN/nonce": RUN.attempt(3).nonce,
        "attempts/NNNN/nodes/NODE.json": RUN.attempt(3).node_answer("n1"), "attempts/NNNN/stop": RUN.attempt(3).stop,
        "attempts/NNNN/exit/rank-RRRRR.json": RUN.attempt(3).exit_file(7), "attempts/NNNN/node-III.log": RUN.attempt(3).node_log(2),
        "events/node-III.jsonl": RUN.event_file(2), "checkpoints/step-SSSSSSSS/": RUN.checkpoint(100), "history.jsonl": RUN.history_jsonl,
    }  # fmt: skip
    text = FORMATS.read_text()
    for name, path in documented.items():
        assert f"`{name}`" in text, name
        pattern = re.escape(name.rstrip("/"))
        for word, form in (("NNNN", "0003"), ("RRRRR", "00007"), ("III", "002"), ("SSSSSSSS", "00000100"), ("NODE", "n1")):
            pattern = pattern.replace(word, form)
        assert re.fullmatch(pattern, str(path.relative_to(RUN.path))), (name, path)
    assert (RUN.stop.name, RUN.finished.name) == ("STOP", "FINISHED")


def test_attempts_are_counted_past_four_digits_and_other_names_are_left_out(tmp_path):
    run = RunDir(tmp_path)
    assert run.attempt_numbers() == []
    for number in (1, 2, 10000):
        run.attempt(number).create()
    (run.attempts / "0003.tmp").mkdir()
    assert run.attempt_numbers() == [1, 2, 10000]
    assert run.attempt(2).exit_dir.is_dir()
    assert run.attempt(2).nodes_dir.is_dir()


def test_a_run_whose_folder_is_gone_is_not_begun_anew(tmp_path):
    run = RunDir(tmp_path / "llama")
    run.create()
    run.attempt(1).create()
    run.path.rename(tmp_path / "away")
    for number in (1, 2):
        with pytest.raises(FileNotFoundError, match="the run's folder is gone"):
            run.attempt(number).create()
    assert not run.path.exists()


def test_creating_a_run_twice_is_no_fault(tmp_path):
    run = RunDir(tmp_path / "deep" / "llama")
    run.create()
    run.create()
    assert run.checkpoints.is_dir()
    assert run.name == "llama"


@pytest.mark.parametrize("name", ["llama-8b_v1.2", "a", "8b", "x" * 128])
def test_names_that_a_run_may_have(name):
    assert valid_run_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "-x", "_x", "a/b", "a b", "a\n", "é", "x" * 129, "a|b", "a%j"])
def test_names_that_it_may_not(name):
    assert not valid_run_name(name)


def test_staging_of_two_attempts_differs_and_is_no_checkpoints_name():
    first, second = RUN.staging(5, 1), RUN.staging(5, 2)
    assert first != second
    assert not first.name.startswith("step-")
