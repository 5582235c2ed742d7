"""Directives say what the issue lists, in an order where the user's own words win, and survive sbatch's own splitting."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.config.recovery import RecoveryConfig
from slurmtrain.errors import ConfigError
from slurmtrain.launch.directives import check_passthrough, check_time_limit, directive, directives, time_limit_s
from slurmtrain.rundir import RunDir
from tests.launch.samples import job, plan, site


def words(a_job=None, a_site=None) -> list[str]:
    a_job, a_site = a_job or job(), a_site or site()
    return list(directives(a_job, a_site, plan(a_job, a_site), RunDir(Path("/runs/my run"))))


def test_what_every_job_is_asked_with():
    assert words(job(spares=1, time="90"))[:9] == [
        "--job-name=llama",
        "--nodes=3",
        "--ntasks-per-node=4",
        "--cpus-per-task=2",
        "--gpus-per-node=4",
        "--exclusive",
        "--mem=0",
        "--time=01:30:00",
        "--requeue",
    ]
    assert words(job(spares=1))[9] == "--no-kill"
    assert words()[-4:] == ["--open-mode=append", "--signal=B:USR2@60", "--propagate=NONE", "--comment=/runs/my run"]


def test_part_of_a_node_is_not_exclusive_and_takes_its_share_of_memory():
    found = words(job(gpus_per_node=2, nodes=1), site(node={"gpus": 8, "memory_bytes": 64 << 30}))
    assert "--exclusive" not in found
    assert "--mem=16384M" in found
    assert "--gpus-per-node=2" in found
    assert not [w for w in words(job(gpus_per_node=2, nodes=1), site(node={"gpus": 8})) if w.startswith("--mem")]


def test_asking_for_all_gpus_by_number_is_the_whole_node():
    assert "--exclusive" in words(job(gpus_per_node=4))


@pytest.mark.parametrize(
    ("slurm", "word"),
    [
        ({"gpu_type": "h100"}, "--gpus-per-node=h100:4"),
        ({"gpus_option": "--gres=gpu"}, "--gres=gpu:4"),
        ({"gpus_option": "--gres=gpu", "gpu_type": "a100"}, "--gres=gpu:a100:4"),
    ],
)
def test_gpus_as_the_site_wants_to_be_asked(slurm, word):
    assert word in words(a_site=site(slurm=slurm))


def test_a_site_without_gpu_gres_is_not_asked_for_gpus():
    assert not [w for w in words(a_site=site(slurm={"gpus_option": ""})) if "gpu" in w]


def test_job_wins_over_site_and_extra_words_come_last():
    found = words(
        job(partition="big", extra=("--mail-type=END",)), site(slurm={"partition": "small", "account": "acc", "extra": ("--nice=5",)})
    )
    assert "--partition=big" in found
    assert "--partition=small" not in found
    assert "--account=acc" in found
    assert found[-2:] == ["--nice=5", "--mail-type=END"]


def test_the_rest_of_what_sbatch_knows():
    asked = {
        "qos": "q",
        "reservation": "r",
        "constraint": "a&b",
        "nodelist": "n[1-2]",
        "exclude": "n9",
        "dependency": "singleton",
        "array": "1-4%1",
    }
    assert {f"--{key}={value}" for key, value in asked.items()} <= set(words(job(**asked)))


@pytest.mark.parametrize(
    ("asked", "a_site", "kept"),
    [
        ({}, {}, False),
        ({"spares": 1}, {}, True),
        ({"spares": 1, "continuation": "chain"}, {}, False),
        ({"spares": 1}, {"commands_on_nodes": False}, False),
    ],
)
def test_a_job_outlives_its_nodes_where_there_is_something_to_go_on_with_and_somebody_to_requeue_it(asked, a_site, kept):
    assert ("--no-kill" in words(job(**asked), site(slurm=a_site))) == kept


def test_no_notice_where_the_site_wants_none():
    assert not [w for w in words(a_site=site(slurm={"stop_notice_s": 0})) if "signal" in w]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("--nodes=2", "--nodes=2"),
        ("--comment=/a b", '--comment="/a b"'),
        ("--comment=it's", '--comment="it\'s"'),
        ('--comment=a"b\\c', '--comment="a\\"b\\\\c"'),
        ("--constraint=a&b", '--constraint="a&b"'),
        ("two words", '"two words"'),
        ("", '""'),
        ("--exclusive", "--exclusive"),
    ],
)
def test_one_word_on_a_directive_line(word, line):
    assert directive(word) == line


def test_a_value_of_several_lines_is_refused():
    a_job, a_site = job(), site()
    with pytest.raises(ConfigError, match=r"--comment.*must be one line"):
        directives(a_job, a_site, plan(a_job, a_site), RunDir(Path("/runs/a\nb")))


def test_a_limit_too_short_for_a_start_and_a_save_says_which_would_do():
    with pytest.raises(ConfigError, match=r"slurm.time = '2'.*00:03:00 or more"):
        check_time_limit(job(time="2"), site())
    check_time_limit(job(time="3"), site())
    check_time_limit(job(time="1"), site(slurm={"stop_notice_s": 0}))
    check_time_limit(job(time="0"), site())
    assert time_limit_s(job(), site(slurm={"time": "1-0"})) == 86400


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--nodes=4",), "slurm.nodes"),
        (("-N4",), "slurm.nodes"),
        (("--ntas=4",), "--ntasks"),
        (("--output=x",), "run folder"),
        (("--export=ALL",), "environment"),
        (("--no-requeue",), "slurmtrain stop"),
        (("script.sh",), "not an option"),
        (("--mail-user", "bob", "jane"), "not an option"),
        (("--comment=x",), "slurmtrain sets it"),
        (("--mail-user", "a\nb"), "one line"),
    ],
)
def test_words_after_the_dashes_that_do_not_belong_there(given, says):
    with pytest.raises(ConfigError, match=says):
        check_passthrough(given)


def test_other_words_pass():
    check_passthrough(("--mail-type=END", "--mail-user", "bob", "-L", "matlab:1", "--nice"))


def test_an_elastic_job_takes_what_there_is():
    """16 sequences over 4, 2, 1 replicas of tp 2 on each node of 4: 4, 2, 1 nodes; 3 do not divide."""

    def asked(nodes, spares=0, **recovery):
        a_job = job(nodes=nodes, spares=spares).model_copy(update={"recovery": RecoveryConfig(**recovery)})
        return next(word for word in words(a_job) if word.startswith("--nodes"))

    assert asked(4, elastic=True) == "--nodes=1-4"
    assert asked(4, elastic=True, min_nodes=2) == "--nodes=2-4"
    assert asked(4, spares=1, elastic=True, min_nodes=3) == "--nodes=5"
    assert asked(4, spares=1, elastic=True, min_nodes=2) == "--nodes=2-5"
    assert asked(1, elastic=True) == "--nodes=1"
    assert asked(4) == "--nodes=4"
