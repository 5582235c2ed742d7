"""Which file a name means, and which site is chosen. Broken: an administrator's file is ignored, or a job goes to a wrong cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.config.expand import expand
from slurmtrain.config.sites import all_files, choose_site, find_file, find_site, list_sites, load_site, search_path
from slurmtrain.errors import ConfigError, TemplateError

SITE = '[slurm]\nclusters = ["{cluster}"]\n\n[node]\ngpus = {gpus}\n'
NONE = Path("/nonexistent/policy.toml")


@pytest.fixture
def places(tmp_path):
    """Two folders of the variable, and a home: (env, a, b, home's folder)."""
    a, b, home = tmp_path / "a", tmp_path / "b", tmp_path / "home"
    for folder in (a, b, home / ".config" / "slurmtrain"):
        folder.mkdir(parents=True)
    return {"SLURMTRAIN_SITE_PATH": f"{a}:{b}", "HOME": str(home)}, a, b, home / ".config" / "slurmtrain"


def write(folder, name, cluster="c", gpus=1):
    (folder / f"{name}.toml").write_text(SITE.format(cluster=cluster, gpus=gpus))


def test_search_path_is_variable_home_etc_installed(places):
    env, a, b, home = places
    assert search_path(env)[:4] == [a, b, home, Path("/etc/slurmtrain")]
    assert search_path(env)[4].name == "site_configs"
    assert search_path({}, "template")[0] == Path("/etc/slurmtrain")
    assert search_path({}, "template")[-1].name == "sbatch_templates"


def test_earlier_folders_hide_later_ones(places):
    env, a, b, home = places
    write(home, "mine", gpus=3)
    assert load_site("mine", env, policy_path=NONE).node.gpus == 3
    write(b, "mine", gpus=2)
    assert load_site("mine", env, policy_path=NONE).node.gpus == 2
    write(a, "mine", gpus=1)
    assert load_site("mine", env, policy_path=NONE).node.gpus == 1


def test_an_own_file_may_replace_an_installed_one(places):
    env, a, *_ = places
    write(a, "local", gpus=7)
    assert load_site("local", env, policy_path=NONE).node.gpus == 7


def test_a_site_is_named_after_its_file_unless_it_says_otherwise(places):
    env, a, *_ = places
    write(a, "mine")
    assert load_site("mine", env, policy_path=NONE).name == "mine"
    (a / "other.toml").write_text('name = "said"\n[node]\ngpus = 1\n')
    assert load_site("other", env, policy_path=NONE).name == "said"


def test_a_path_is_taken_as_it_is(places, tmp_path):
    write(tmp_path, "elsewhere", gpus=5)
    assert load_site(str(tmp_path / "elsewhere.toml"), {}, policy_path=NONE).node.gpus == 5
    with pytest.raises(ConfigError, match="no such site file"):
        load_site(str(tmp_path / "nowhere.toml"), {}, policy_path=NONE)


def test_an_unknown_name_lists_what_there_is(places):
    env, *_ = places
    with pytest.raises(ConfigError, match=r"no site 'devclustr'; did you mean 'devcluster'\? There are devcluster, dgx-b300, "):
        find_file("site", "devclustr", env)
    with pytest.raises(ConfigError, match=r"no site 'qq': there are .*local"):
        find_file("site", "qq", env)
    with pytest.raises(TemplateError, match=r"no template 'qq'"):
        find_file("template", "qq", env)


def test_a_name_never_leaves_the_search_path(places, tmp_path):
    env, *_ = places
    write(tmp_path, "outside")
    with pytest.raises(ConfigError, match="no site"):
        find_file("site", "../outside", env)


def test_templates_are_found_beside_sites(places):
    env, a, b, _ = places
    (b / "train.sbatch.j2").write_text("b")
    assert find_file("template", "train", env) == b / "train.sbatch.j2"
    (a / "train.sbatch.j2").write_text("a")
    assert find_file("template", "train", env) == a / "train.sbatch.j2"


def test_list_tells_broken_files_and_leaves_the_policy_out(places):
    env, a, *_ = places
    (a / "broken.toml").write_text("x")
    (a / "policy.toml").write_text("[lock]\n")
    listed = {name: (path, text) for name, path, text in list_sites(env)}
    assert listed["broken"][1].startswith("(broken: not TOML")
    assert listed["local"][1] == "this machine, without Slurm: ranks under mpiexec"
    assert "policy" not in listed
    assert "policy" not in all_files("site", env)


def test_cluster_name_finds_the_site_by_name_or_pattern(places):
    env, a, *_ = places
    write(a, "mine", cluster="alpha-*", gpus=6)
    assert find_site("alpha-7", env, policy_path=NONE).name == "mine"
    assert find_site("devcluster", env, policy_path=NONE).name == "devcluster"
    assert find_site("alpha", env, policy_path=NONE) is None


def test_the_nearest_claim_wins_and_two_in_one_folder_are_refused(places):
    env, a, b, _ = places
    write(b, "far", cluster="devcluster")
    assert find_site("devcluster", env, policy_path=NONE).name == "far"
    write(a, "near", cluster="devcluster")
    assert find_site("devcluster", env, policy_path=NONE).name == "near"
    write(a, "twin", cluster="devcluster")
    with pytest.raises(ConfigError, match="claimed by the sites near and twin: choose one with --site"):
        find_site("devcluster", env, policy_path=NONE)


def test_a_broken_site_of_others_does_not_stop_the_search(places):
    env, a, *_ = places
    (a / "broken.toml").write_text("x")
    assert find_site("devcluster", env, policy_path=NONE).name == "devcluster"


def test_option_before_variable_before_cluster(places):
    env, *_ = places

    def never():
        raise AssertionError("Slurm was asked though the site was given")

    assert choose_site("local", {**env, "SLURMTRAIN_SITE": "generic"}, never, policy_path=NONE).name == "local"
    assert choose_site(None, {**env, "SLURMTRAIN_SITE": "generic"}, never, policy_path=NONE).name == "generic"
    assert choose_site(None, env, lambda: "devcluster", policy_path=NONE).name == "devcluster"


def test_nothing_found_lists_the_sites_and_how_to_choose(places):
    env, *_ = places
    with pytest.raises(ConfigError, match=r"no site names the cluster 'zeta': choose one with --site NAME or SLURMTRAIN_SITE=NAME.*local"):
        choose_site(None, env, lambda: "zeta", policy_path=NONE)
    with pytest.raises(ConfigError, match="no Slurm tells"):
        choose_site(None, env, lambda: None, policy_path=NONE)


def test_expand_fills_in_home_and_variables_and_keeps_the_rest():
    env = {"HOME": "/home/ada", "USER": "ada", "EMPTY": ""}
    assert expand("~/x", env) == Path("/home/ada/x")
    assert expand("/lustre/$USER/${USER}_2", env) == Path("/lustre/ada/ada_2")
    assert expand("./runs", env) == Path("runs")
    assert expand("a~b", env) == Path("a~b")
    for bad in ("$NOPE/x", "$EMPTY/x"):
        with pytest.raises(ConfigError, match=r"site.toml: paths.root = .*is not set"):
            expand(bad, env, where="site.toml", key="paths.root")
