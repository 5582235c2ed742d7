"""The interpreter of a job is found, and shown to have slurmtrain, before anything is submitted."""

from __future__ import annotations

import json
import platform
import sys
from importlib import metadata

import pytest

from slurmtrain import __version__
from slurmtrain.errors import ConfigError
from slurmtrain.launch.interpreter import ask_versions, choose_python
from slurmtrain.shell import Completed, SystemShell
from tests.launch.samples import job, site


def test_the_job_says_else_the_site_else_the_one_that_runs_now():
    here = {"HOME": "/home/ada"}
    assert choose_python(job(), site(), here) == sys.executable
    assert choose_python(job(), site(python={"interpreter": "~/env/bin/python"}), here) == "/home/ada/env/bin/python"
    assert choose_python(job(), site(python={"interpreter": "python3.11"}), here) == "python3.11"
    said = job().model_copy(update={"python": "/mine/bin/python"})
    assert choose_python(said, site(python={"interpreter": "/theirs"}), here) == "/mine/bin/python"


def test_versions_of_this_interpreter():
    found = ask_versions(sys.executable, job(), site(), SystemShell())
    assert (found.python, found.slurmtrain) == (platform.python_version(), __version__)
    assert found.packages["click"] == metadata.version("click")


def test_a_name_that_a_module_brings_is_left_to_the_node_check():
    assert ask_versions("python3", job(), site(environment={"modules": ["python"]}), SystemShell()).python == ""


def test_one_that_is_not_there():
    with pytest.raises(ConfigError, match=r"python.interpreter = '/gone/python': no such interpreter"):
        ask_versions("/gone/python", job(), site(), SystemShell())


def test_one_that_cannot_run_slurmtrain(tmp_path):
    stub = tmp_path / "python"
    stub.write_text("#!/bin/sh\necho 'Traceback' >&2\necho \"ModuleNotFoundError: No module named 'slurmtrain'\" >&2\nexit 1\n")
    stub.chmod(0o755)
    with pytest.raises(ConfigError, match="cannot run slurmtrain: ModuleNotFoundError"):
        ask_versions(str(stub), job(), site(), SystemShell())


def answering(*answer):
    class Shell(SystemShell):
        def run(self, argv, **more):
            return Completed(tuple(argv), 0, json.dumps(answer) + "\n", "")

    return Shell()


def test_another_release_is_refused():
    with pytest.raises(ConfigError, match=rf"it has slurmtrain 0.0.9, and this is {__version__}"):
        ask_versions("/x", job(), site(), answering("3.12.1", "0.0.9", {}))


def test_words_that_are_no_answer():
    with pytest.raises(ConfigError, match="cannot run slurmtrain"):
        ask_versions("/x", job(), site(), answering("welcome"))


def test_packages_are_in_the_order_of_their_names():
    found = ask_versions("/x", job(), site(), answering("3.12.1", __version__, {"b": "1", "A": "2"}))
    assert list(found.packages) == ["A", "b"]
