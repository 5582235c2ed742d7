"""Layouts of elastic runs on fewer nodes: by hand, and against a job that asks for those nodes itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmtrain.config.checks import check_job
from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError, PlacementError
from slurmtrain.fabric.plan import build_plan
from slurmtrain.fabric.resize import check_elastic, fewest, resize, sizes

MODEL = {"layers": 8, "hidden": 64, "heads": 16, "kv_heads": 16, "ffn": 128, "vocab": 320}


def job(nodes=4, batch=64, micro=1, ramp=None, *, checkpoint=None, recovery=None, **parallel) -> JobConfig:
    return JobConfig.model_validate(
        {
            "run": {"name": "r"},
            "model": MODEL,
            "data": {"path": "/data"},
            "training": {"steps": 9, "sequence_length": 64, "global_batch": batch, "micro_batch": micro, "batch_ramp": ramp},
            "parallel": parallel,
            "slurm": {"nodes": nodes},
            "checkpoint": checkpoint or {},
            "recovery": {"elastic": True, **(recovery or {})},
        }
    )


def site(gpus=4, **node) -> SiteConfig:
    return SiteConfig.model_validate({"name": "s", "node": {"gpus": gpus, **node}})


def shrunk(a_job, nodes, a_site=None):
    a_site = a_site or site()
    return resize(build_plan(a_job, a_site), a_job, a_site, nodes)


def test_dp_gives_way_and_the_batch_stays():
    small = shrunk(job(tp=2, pp=2, dp_mode="fsdp"), 2)
    whole = build_plan(job(tp=2, pp=2, dp_mode="fsdp"), site())
    changed = {"nodes": 2, "world": 8, "dp": 2, "microbatches": 32}
    assert (whole.dp, whole.microbatches) == (4, 16)
    assert small == whole.model_copy(update=changed)


@pytest.mark.parametrize(
    ("given_nodes", "taken"),
    [(8, 4), (4, 4), (3, 2), (2, 2), (1, 1), (0, None)],
    ids=str,
)
def test_as_many_as_divide_the_batch(given_nodes, taken):
    """64 sequences over 16, 8 and 4 ranks; 12 do not divide them."""
    found = shrunk(job(), given_nodes)
    assert (found and found.nodes) == taken


def test_never_more_than_planned_and_then_as_planned():
    a_job = job(tp=2, dp_shard=4, dp_mode="fsdp")
    assert shrunk(a_job, 9) == build_plan(a_job, site())


def test_not_below_the_least():
    assert shrunk(job(recovery={"min_nodes": 2}), 1) is None
    assert shrunk(job(recovery={"min_nodes": 2}), 3).nodes == 2


def test_tp_x_pp_x_cp_must_fill_whole_nodes():
    """A replica takes 16 GPUs: four nodes of 4, two of 8."""
    layout = {"tp": 4, "pp": 2, "cp": 2, "cp_mode": "allgather"}
    small, large = job(nodes=8, batch=12, **layout), job(nodes=6, batch=12, **layout)
    assert [(found := shrunk(small, n)) and found.nodes for n in range(9)] == [None, None, None, None, 4, 4, 4, 4, 8]
    assert [(found := shrunk(large, n, site(gpus=8))) and found.nodes for n in range(7)] == [None, None, 2, 2, 4, 4, 6]


def test_a_micro_batch_that_no_longer_divides_falls():
    """12 sequences: 4 ranks x 3; 3 ranks have 4 each, of which 2 go at a time; 2 ranks 3 x 2 again."""
    a_job = job(nodes=4, batch=12, micro=3)
    three, two = (shrunk(a_job, n, site(gpus=1)) for n in (3, 2))
    assert (three.dp, three.micro_batch, three.microbatches) == (3, 2, 2)
    assert (two.dp, two.micro_batch, two.microbatches) == (2, 3, 2)


def test_every_size_of_a_ramp_divides():
    """Of the sizes 4, 8, 12 over 4 ranks: 3 ranks divide 12 alone, 2 divide them all."""
    ramp = {"start": 4, "increment": 4, "samples": 40}
    assert shrunk(job(batch=12, ramp=ramp), 3, site(gpus=1)).nodes == 2
    assert shrunk(job(batch=12), 3, site(gpus=1)).nodes == 3


def test_shards_never_grow_on_a_rank():
    """Shares of one copy: 4 of 8; of 6 ranks neither 4 nor 5 divide; 2 ranks have no 4."""
    a_job = job(nodes=8, batch=24, dp_mode="fsdp", dp_shard=4)
    assert [shrunk(a_job, n, site(gpus=1)).dp_shard for n in (8, 6, 4, 2)] == [4, 6, 4, 2]
    assert shrunk(job(nodes=8, batch=24, dp_mode="fsdp"), 6, site(gpus=1)).dp_shard is None


def test_a_schedule_in_rounds_gets_what_it_can_run():
    """Interleaved over pp = 4: 7 micro-batches of 2 go in one round; 14 do not divide into 3 rounds, 28 of one sequence do into 7."""
    whole = build_plan(job(nodes=2, batch=28, micro=2, pp=4, vp=2), site())
    small = shrunk(job(nodes=2, batch=28, micro=2, pp=4, vp=2), 1)
    assert (whole.dp, whole.micro_batch, whole.microbatches) == (2, 2, 7)
    assert (small.dp, small.micro_batch, small.microbatches) == (1, 1, 28)


def test_blocks_stay_whole():
    """TP over both nodes of a block: 1 and 3 nodes have no layout."""
    a_job, rack = job(tp=8, batch=8), site(nvlink_domain="block", block_nodes=2)
    assert sizes(build_plan(a_job, rack), a_job, rack) == [2, 4]


def test_memory_that_would_not_hold_a_copy():
    """A copy of the state on two nodes' memory, not on one's."""
    a_job = job(checkpoint={"mode": "async"})
    state = 12 * a_job.model.parameters()
    assert sizes(build_plan(a_job, site()), a_job, site(memory_bytes=state // 2 + 1)) == [2, 4]


def peer(a_job, a_site, nodes):
    """The largest job on at most so many nodes that all checks let through, tried one by one."""
    for count in range(min(nodes, a_job.slurm.nodes), a_job.recovery.min_nodes - 1, -1):
        for micro in range(a_job.training.micro_batch, 0, -1):
            sections = {"slurm": {"nodes": count}, "training": {"micro_batch": micro}, "parallel": {"dp_shard": None}}
            asked = a_job.model_copy(update={name: getattr(a_job, name).model_copy(update=some) for name, some in sections.items()})
            try:
                check_job(asked, a_site)
                return build_plan(asked, a_site)
            except (ConfigError, PlacementError):
                continue
    return None


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_it_is_the_layout_of_a_job_that_asks_for_those_nodes(data):
    def draw(*values):
        return data.draw(st.sampled_from(values))

    pp = draw(1, 2, 4)
    more = {"vp": 2} if pp > 1 and draw(True, False) else {}
    order = draw(["tp", "cp", "ep", "dp", "pp"], ["cp", "tp", "ep", "dp", "pp"], ["dp", "tp", "cp", "ep", "pp"])
    a_site = draw(site(gpus=4), site(gpus=8), site(gpus=4, nvlink_domain="pairs"), site(gpus=2, nvlink_domain="block", block_nodes=2))
    ramp = draw(None, {"start": 24, "increment": 24, "samples": 100})
    layout = {"tp": draw(1, 2, 4), "cp": draw(1, 2), "cp_mode": "allgather", "pp": pp, "order": order, **more}
    a_job = job(draw(1, 2, 3, 4, 6, 8), draw(24, 48, 96, 120), draw(1, 2, 3, 4), ramp, recovery={"min_nodes": draw(1, 2)}, **layout)
    try:
        check_job(a_job, a_site)
        plan = build_plan(a_job, a_site)
    except (ConfigError, PlacementError):
        return
    for nodes in range(9):
        assert resize(plan, a_job, a_site, nodes) == peer(a_job, a_site, nodes)


@pytest.mark.parametrize(
    ("a_job", "says"),
    [
        (job(recovery={"min_nodes": 3}), r"recovery\.min_nodes = 3: .*global_batch = 64\): use 1, 2 or 4"),
        (job(recovery={"min_nodes": 5}), r"recovery\.min_nodes = 5: is more than slurm\.nodes = 4: use 1, 2 or 4"),
        (job(nodes=2, tp=4, pp=2), r"recovery\.elastic = True: no other number of nodes than 2 .*tp x pp x cp = 8.*leave it out"),
    ],
)
def test_what_could_never_shrink_is_refused(a_job, says):
    with pytest.raises(ConfigError, match=says):
        check_elastic(build_plan(a_job, site()), a_job, site())


def test_what_can_is_not():
    for a_job in (job(), job(nodes=1), job(recovery={"min_nodes": 2}), job(nodes=2, tp=4, pp=2, recovery={"elastic": False})):
        check_elastic(build_plan(a_job, site()), a_job, site())


def test_the_fewest_nodes():
    plan = build_plan(job(), site())
    asked = [job(), job(recovery={"min_nodes": 2}), job(recovery={"min_nodes": 3}), job(recovery={"elastic": False})]
    assert [fewest(plan, one, site()) for one in asked] == [1, 2, 4, 4]
