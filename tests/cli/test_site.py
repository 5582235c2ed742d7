"""`slurmtrain site`: which there are, and a file that can be read back."""

from __future__ import annotations

import tomllib

import pytest

from slurmtrain.config.sites import load_site
from tests.cli.desk import Desk, one_line_of


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_list_names_file_and_description(desk):
    lines = desk.type("site", "list").stdout.splitlines()
    (mine,) = [line for line in lines if line.startswith("mysite ")]
    assert str(desk.folder / "mysite.toml") in mine
    assert "four ranks a node" in mine
    assert [line for line in lines if line.startswith("local ")]


def test_a_broken_site_is_listed_as_broken(desk):
    (desk.folder / "broken.toml").write_text("[[")
    assert "broken" in desk.type("site", "list").stdout


def test_show_is_a_site_file(desk, tmp_path):
    for name in ("mysite", "dgx-h100", "gb200-nvl72"):
        text = desk.type("site", "show", name).stdout
        assert text.startswith("# from ")
        (tmp_path / "copy.toml").write_text(text)
        assert load_site(str(tmp_path / "copy.toml"), {}) == load_site(name, desk.env)


def test_show_without_a_name_is_the_one_that_would_be_used(desk):
    assert f"# from {desk.folder / 'mysite.toml'}" in desk.type("site", "show").stdout
    desk.env.pop("SLURMTRAIN_SITE")
    desk.slurm.config["ClusterName"] = "devcluster"
    assert tomllib.loads(desk.type("site", "show").stdout)["name"] == "devcluster"


def test_show_of_an_unknown_site(desk):
    assert "no site 'mysit'" in one_line_of(desk.type("site", "show", "mysit"))
