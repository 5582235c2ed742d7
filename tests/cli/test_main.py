"""The group: help without imports, one line for what is known, a traceback and one line for what is not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import click
import pytest
from click.testing import CliRunner

from slurmtrain.cli import errors
from slurmtrain.cli.main import COMMANDS, main
from slurmtrain.errors import ConfigError, SlurmError
from tests.cli.desk import one_line_of

PROBE = """
import sys, json
from slurmtrain.cli.main import main
try:
    main(["--help"])
except SystemExit:
    print(json.dumps(sorted(sys.modules)))
"""
SCRIPT = [sys.executable, "-m", "slurmtrain.cli.main"]


def typed(*words: str):
    return CliRunner().invoke(main, words)


def test_help_names_every_command_and_imports_none():
    assert "Example:" in typed("--help").stdout
    for name, (_, text) in COMMANDS.items():
        assert f"  {name} " in typed("-h").stdout
        assert text.split(".")[0][:40] in typed("-h").stdout
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert not loaded & {"torch", "numpy", "h5py", "mpi4py", "submitit", "pydantic", "jinja2", "rich", "slurmtrain.cli.submit"}


def test_help_answers_within_three_times_of_click_alone():
    def best(*argv: str) -> float:
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            subprocess.run([sys.executable, *argv], check=True, capture_output=True, timeout=60)
            times.append(time.perf_counter() - begin)
        return min(times)

    assert best("-m", "slurmtrain.cli.main", "--help") < max(0.3, 3 * best("-c", "import click"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name):
    found = main.get_command(click.Context(main), name)
    inner = [f"{name} {sub}" for sub in found.commands] if isinstance(found, click.Group) else []
    for path in [name, *inner]:
        result = typed(*path.split(), "--help")
        assert result.exit_code == 0
        shown = result.stdout.partition("Example")[2].splitlines()[1:]
        assert shown, path
        assert all(re.match(r" +(salloc .*)?slurmtrain ", line) for line in shown), "one command a line, none broken"
        assert not re.search(r"[a-z]\.\.\.$", result.stdout, re.MULTILINE), "no help cut short"


def test_version():
    assert typed("--version").stdout.startswith("slurmtrain, version ")


def test_a_misspelt_command_and_option():
    assert one_line_of(typed("sumbit")) == "slurmtrain: no command 'sumbit'; did you mean submit? (see slurmtrain --help)"
    assert "there are submit, run" in one_line_of(typed("xyzzy"))
    assert "slurmtrain submit: No such option '--partitoin'" in one_line_of(typed("submit", "x", "--partitoin", "a"))
    assert "slurmtrain submit: Missing argument 'JOB.toml'" in one_line_of(typed("submit"))


def test_without_a_command_the_help_comes_and_it_is_an_error():
    result = typed()
    assert result.exit_code == 2
    assert "Commands:" in result.stderr


def raising(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("wrong", where="job.toml", key="a.b", value=3), 2, "slurmtrain: job.toml: a.b = 3: wrong"),
        (SlurmError("sbatch: two\nlines"), 1, "slurmtrain: sbatch: two lines"),
        (KeyboardInterrupt(), 130, "slurmtrain: interrupted"),
        (click.Abort(), 130, "slurmtrain: interrupted"),
        (PermissionError(13, "Permission denied", "/x"), 1, "slurmtrain: /x: Permission denied"),
        (OSError(28, "No space left on device", "/x"), 1, "slurmtrain: /x: No space left on device: make room there (`df`, `df -i`)"),
        (SystemExit("words"), 1, "slurmtrain: words"),
    ],
)
def test_known_ends_are_one_line(error, code, line, capsys):
    assert errors.guarded(raising(error)) == code
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.parametrize(("result", "code"), [(None, 0), (7, 7), ("text", 0)])
def test_the_code_of_a_command(result, code):
    assert errors.guarded(lambda: result) == code
    assert errors.guarded(raising(SystemExit(3))) == 3
    assert errors.guarded(raising(SystemExit())) == 0


def test_a_fault_keeps_its_traceback_and_ends_with_one_clear_line(capsys):
    assert errors.guarded(raising(ZeroDivisionError("division by zero"))) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1].endswith("please report it with the lines above: ZeroDivisionError: division by zero")


def test_streams_that_are_closed_from_the_start_are_no_fault_of_ours():
    done = subprocess.run(["bash", "-c", f"{' '.join(SCRIPT)} site list >&- 2>&-"], check=False, timeout=60)
    assert done.returncode == 0


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(SCRIPT)} site list | exec true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout.strip() in {"1", "141"}  # click's own code, or ours when the pipe breaks at the last flush
