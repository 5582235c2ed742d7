"""The Plan of a job on a site: the world's arithmetic, and the site's promise carried into it. Expected numbers by hand."""

from __future__ import annotations

import pytest

from slurmtrain.config.job import JobConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError, PlacementError
from slurmtrain.fabric.plan import build_plan

MODEL = {"layers": 4, "hidden": 64, "heads": 8, "kv_heads": 8, "ffn": 128, "vocab": 320}


def job(*, nodes: int = 2, spares: int = 0, part: int | None = None, batch: int = 8, micro: int = 1, **parallel: object) -> JobConfig:
    return JobConfig.model_validate(
        {
            "run": {"name": "r"},
            "model": MODEL,
            "data": {"path": "/data"},
            "training": {"steps": 1, "sequence_length": 64, "global_batch": batch, "micro_batch": micro},
            "parallel": parallel,
            "slurm": {"nodes": nodes, "spares": spares, "gpus_per_node": part},
        }
    )


def site(gpus: int = 4, **node: object) -> SiteConfig:
    return SiteConfig.model_validate({"name": "s", "node": {"gpus": gpus, **node}})


def test_the_plan_of_the_example():
    assert build_plan(job(tp=2, pp=2, spares=1), site()) == Plan(
        world=8,
        nodes=2,
        spares=1,
        gpus_per_node=4,
        tp=2,
        cp=1,
        ep=1,
        dp=2,
        pp=2,
        order=("tp", "cp", "ep", "dp", "pp"),
        nvlink_domain="node",
        block_nodes=1,
        stages=((0, 1), (2, 3)),
        global_batch=8,
        micro_batch=1,
        microbatches=4,
        dp_mode="ddp",
    )


def test_part_of_a_node_is_its_own_domain():
    part = build_plan(job(nodes=1, part=2, tp=2), site())
    assert (part.world, part.gpus_per_node, part.dp) == (2, 2, 1)
    with pytest.raises(PlacementError, match=r"tp = 4 .* domains of 2 GPUs"):
        build_plan(job(nodes=2, part=2, tp=4), site())


def test_tp_8_over_two_nodes_needs_blocks():
    block = build_plan(job(nodes=2, tp=8), site(nvlink_domain="block", block_nodes=2))
    assert (block.nvlink_domain, block.block_nodes, block.dp, block.microbatches) == ("block", 2, 1, 8)
    with pytest.raises(PlacementError, match=r"parallel\.tp = 8 does not fit NVLink domains of 4 GPUs .* use 1, 2 or 4"):
        build_plan(job(nodes=2, tp=8), site())


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (job(dp=3), ConfigError, "3"),
        (job(batch=12), PlacementError, r"global_batch = 12 is not a multiple of dp x micro_batch = 8 x 1 = 8"),
        (job(pp=8), PlacementError, "pp x vp = 8 does not cut 4 layers"),
        (job(ep=3), PlacementError, "ep = 3 must divide dp = 8"),
    ],
)
def test_what_cannot_be_is_refused(wrong, error, words):
    with pytest.raises(error, match=words):
        build_plan(wrong, site())
