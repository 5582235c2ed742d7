"""The arithmetic of the world, and that what fits is let through. What does not fit: bad_files.py."""

from __future__ import annotations

import itertools

import pytest

from slurmtrain.config.checks import check_job, gpus_per_node, resolve_dp
from slurmtrain.config.job import JobConfig
from slurmtrain.config.presets import preset_shape
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError


def job(**sections) -> JobConfig:
    values = {
        "run": {"name": "r"},
        "model": preset_shape("llama3-8b"),
        "data": {"path": "/d"},
        "training": {"steps": 10, "sequence_length": 4096, "global_batch": 64},
    }
    return JobConfig.model_validate(values | sections)


def site(**node) -> SiteConfig:
    return SiteConfig(name="s", node={"gpus": 8, **node})


@pytest.mark.parametrize(("nodes", "gpus", "tp", "pp"), [*itertools.product((1, 2, 3, 8), (1, 4, 8), (1, 2, 4), (1, 2))])
def test_dp_is_the_number_of_model_copies(nodes, gpus, tp, pp):
    one = job(slurm={"nodes": nodes}, parallel={"tp": tp, "pp": pp})
    copies = len(range(0, nodes * gpus - tp * pp + 1, tp * pp))  # how often a whole model fits, counted
    if copies * tp * pp == nodes * gpus:
        assert resolve_dp(one, gpus) == copies
    else:
        with pytest.raises(ConfigError, match="not divisible"):
            resolve_dp(one, gpus)


def test_nodes_that_would_do_do():
    wrong = job(slurm={"nodes": 4}, parallel={"tp": 8, "pp": 2})
    with pytest.raises(ConfigError, match=r"= 12 ranks is not divisible by tp x pp x cp = 8 x 2 x 1 = 16: use 16 nodes") as caught:
        resolve_dp(wrong, 3)
    assert caught.value.key == "slurm.nodes"
    assert resolve_dp(job(slurm={"nodes": 16}, parallel={"tp": 8, "pp": 2}), 3) == 3


def test_given_dp_that_agrees_is_let_through():
    assert resolve_dp(job(slurm={"nodes": 2}, parallel={"tp": 8, "dp": 2}), 8) == 2


def test_a_fitting_job_is_let_through_and_part_of_a_node_counts():
    fits = job(slurm={"nodes": 2, "gpus_per_node": 4}, parallel={"tp": 4, "pp": 2, "dp": 1})
    check_job(fits, site())
    assert gpus_per_node(fits, site()) == 4
    assert gpus_per_node(job(), site()) == 8


def test_tied_embeddings_are_let_through_over_stages_too():
    check_job(job(model=preset_shape("llama3-1b"), parallel={"tp": 4, "pp": 2}), site())


def test_where_names_the_file_or_the_run():
    bad = job(parallel={"tp": 3})
    with pytest.raises(ConfigError, match=r"^job r: parallel\.tp = 3"):
        check_job(bad, site())
    with pytest.raises(ConfigError, match=r"^a/job\.toml: parallel\.tp = 3: does not divide heads = 32: use 1, 2, 4, 8, 16 or 32"):
        check_job(bad, site(), where="a/job.toml")
