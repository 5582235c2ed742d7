"""Each bad file gives one line that names the file, the key and what to do; broken: users see a traceback, or guess."""

from __future__ import annotations

import os

import pytest

from slurmtrain.config import policy
from slurmtrain.config.checks import check_job
from slurmtrain.config.load import load_job
from slurmtrain.config.sites import load_site
from slurmtrain.errors import EXIT_USER, ConfigError
from tests.config.bad_files import CASES, GOOD_JOB, BadFile

ENV = {"HOME": "/home/ada"}


def check(case: BadFile, folder):
    job_path, site_path, policy_path = case.write(folder)
    job = load_job(job_path, sets=case.sets, options=case.options, env=ENV, policy_path=policy_path)
    check_job(job, load_site(str(site_path), ENV, policy_path=policy_path), where=str(job_path))


@pytest.fixture(autouse=True)
def _policy_of_this_user(monkeypatch):
    monkeypatch.setattr(policy, "OWNER_UID", os.getuid())


def test_the_good_files_are_good(tmp_path):
    check(BadFile("good", "job", GOOD_JOB.encode(), "", ""), tmp_path)


def test_there_are_enough_cases_and_their_names_differ():
    assert len(CASES) >= 40
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_line_names_file_key_and_remedy(case, tmp_path):
    with pytest.raises(ConfigError) as caught:
        check(case, tmp_path)
    line = str(caught.value)
    assert caught.value.key == case.key
    assert case.says in line
    assert case.key.split("[")[0] in line
    assert "\n" not in line
    assert len(line) < 500
    assert caught.value.exit_code == EXIT_USER
    if not case.sets and not case.options:
        assert str(tmp_path) in line
