"""Locked keys hold whatever the job, the command line or the site say. Broken: an administrator's rule can be walked around."""

from __future__ import annotations

import os

import pytest

from slurmtrain.config import policy
from slurmtrain.config.load import load_job
from slurmtrain.config.sites import load_site
from slurmtrain.errors import ConfigError
from tests.config.bad_files import GOOD_JOB, GOOD_SITE

ENV = {"HOME": "/home/ada"}


@pytest.fixture
def at(tmp_path, monkeypatch):
    """Writes job, site and policy; returns loaders of the first two."""
    monkeypatch.setattr(policy, "OWNER_UID", os.getuid())
    (tmp_path / "job.toml").write_text(GOOD_JOB)
    (tmp_path / "mysite.toml").write_text(GOOD_SITE)
    path = tmp_path / "policy.toml"

    class Loaders:
        file = path

        @staticmethod
        def lock(text):
            path.write_text(f"[lock]\n{text}\n")

        @staticmethod
        def job(**more):
            return load_job(tmp_path / "job.toml", env=ENV, policy_path=path, **more)

        @staticmethod
        def site():
            return load_site(str(tmp_path / "mysite.toml"), ENV, policy_path=path)

    return Loaders


def test_no_policy_forces_nothing(at):
    assert at.job().slurm.partition is None
    assert at.site().slurm.exclusive is True


def test_a_locked_key_is_forced_where_nobody_says_it(at):
    at.lock('"slurm.partition" = "batch"\n"environment.NCCL_DEBUG" = "WARN"\n"site.slurm.account" = "shared"')
    assert at.job().slurm.partition == "batch"
    assert at.job().environment == {"NCCL_DEBUG": "WARN"}
    assert at.site().slurm.account == "shared"


def test_keys_may_be_written_without_quotes(at):
    at.lock('slurm.partition = "batch"')
    assert at.job().slurm.partition == "batch"


def test_saying_the_same_is_no_contradiction(at):
    at.lock('"slurm.partition" = "batch"')
    assert at.job(options={"slurm.partition": "batch"}).slurm.partition == "batch"


@pytest.mark.parametrize(
    ("more", "who"),
    [({"sets": ["slurm.partition=fast"]}, "--set slurm.partition"), ({"options": {"slurm.partition": "fast"}}, "command line")],
)
def test_contradiction_on_the_command_line_names_the_policy(at, more, who):
    at.lock('"slurm.partition" = "batch"')
    with pytest.raises(ConfigError) as caught:
        at.job(**more)
    assert str(caught.value) == f"{who}: slurm.partition = 'fast': the policy {at.file} allows 'batch' alone"


def test_spares_of_a_range_are_seen(at):
    at.lock('"slurm.spares" = 0')
    with pytest.raises(ConfigError, match="allows 0 alone"):
        at.job(options={"slurm.nodes": "2-3"})


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_file_that_others_may_write_is_refused(at, mode):
    at.lock('"slurm.partition" = "batch"')
    at.file.chmod(mode)
    with pytest.raises(ConfigError, match="is not to be trusted: chown root and chmod 644"):
        at.job()


def test_a_file_of_another_owner_is_refused(at, monkeypatch):
    at.lock('"slurm.partition" = "batch"')
    monkeypatch.setattr(policy, "OWNER_UID", os.getuid() + 1)
    with pytest.raises(ConfigError, match="is not to be trusted"):
        at.site()


def test_the_owner_must_be_root_and_the_place_is_etc():
    assert policy.OWNER_UID == 0
    assert str(policy.POLICY_PATH) == "/etc/slurmtrain/policy.toml"
    assert load_job.__kwdefaults__["policy_path"] == load_site.__kwdefaults__["policy_path"] == policy.POLICY_PATH
