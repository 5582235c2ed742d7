"""Layouts, numerics and schedules that cannot be: each is refused on the login node, in one line that says what would do.

Broken: a run waits hours in the queue and dies in a collective, or trains something else than it was asked to.
"""

from __future__ import annotations

import re

import pytest

from slurmtrain.config.checks import check_job
from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError
from slurmtrain.fabric.plan import build_plan

LLAMA = {"layers": 8, "hidden": 64, "heads": 8, "kv_heads": 4, "ffn": 96, "vocab": 100}
GPT2 = {"family": "gpt2", "layers": 8, "hidden": 64, "heads": 8, "kv_heads": 8, "ffn": 96, "vocab": 100, "max_positions": 64}
ROPE = {"kind": "llama3", "factor": 8.0, "original_length": 32}
SITE = SiteConfig(name="s", device="cpu", node={"gpus": 8})


def job(**sections) -> JobConfig:
    """One node of 8 ranks, T = 64, 16 sequences a step; `sections`: what is said otherwise."""
    values = {
        "run": {"name": "r"},
        "model": LLAMA,
        "data": {"path": "/d"},
        "training": {"steps": 100, "sequence_length": 64, "global_batch": 16},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    if "path" in values["data"] and "sources" in values["data"]:
        del values["data"]["path"]
    return JobConfig.model_validate(values)


def bad(key, says, **sections):
    return pytest.param(key, says, sections, id=f"{key}: {says}"[:80])


CASES = [
    # tensor and sequence parallelism
    bad("parallel.tp", "does not divide heads = 8: use 1, 2, 4 or 8", parallel={"tp": 3}),
    bad("parallel.tp", "does not divide heads = 8", parallel={"tp": 16}),
    bad("parallel.tp", "does not divide ffn = 100: use 1, 2 or 4", model={"ffn": 100}, parallel={"tp": 8}),
    bad(
        "parallel.tp",
        "neither divides kv_heads = 3 nor is a multiple",
        model={"heads": 12, "kv_heads": 3, "hidden": 96},
        parallel={"tp": 2},
    ),
    bad(
        "parallel.tp",
        "nor is a multiple of it, so that ranks would share heads: use 1, 2, 3, 6 or 12",
        model={"heads": 12, "kv_heads": 6, "hidden": 96},
        training={"sequence_length": 48},
        parallel={"tp": 4},
    ),
    bad("parallel.tp", "does not divide sequence_length = 62", training={"sequence_length": 62}, parallel={"tp": 4}),
    bad(
        "parallel.tp",
        "does not divide sequence_length = 63, which sequence parallelism cuts: use 1",
        training={"sequence_length": 63},
        parallel={"tp": 2},
    ),
    # context parallelism
    bad(
        "training.sequence_length",
        "cp = 2 (ring) and tp = 1 cut it into 4 pieces: use 60 or 64",
        training={"sequence_length": 62},
        parallel={"cp": 2},
    ),
    bad("training.sequence_length", "cp = 2 (allgather)", training={"sequence_length": 62}, parallel={"cp": 2, "cp_mode": "allgather"}),
    bad(
        "training.sequence_length",
        "cp = 2 (ulysses) and tp = 2 cut it into 4 pieces",
        training={"sequence_length": 62},
        parallel={"cp": 2, "tp": 2, "cp_mode": "ulysses"},
    ),
    bad("training.sequence_length", "cut it into 8 pieces: use 56 or 64", training={"sequence_length": 60}, parallel={"cp": 4}),
    bad("parallel.cp", "a rank has 2 (heads / tp = 8 / 4): use 1 or 2", parallel={"cp": 4, "tp": 4, "cp_mode": "ulysses"}),
    bad("parallel.cp", 'or cp_mode = "ring"', parallel={"cp": 2, "tp": 8, "cp_mode": "ulysses"}),
    bad("parallel.cp_mode", "keeps no documents apart", data={"documents": "separate"}, parallel={"cp": 2}),
    bad("parallel.cp_mode", "has no sliding window (model.window = 8)", model={"window": 8}, parallel={"cp": 2}),
    bad(
        "parallel.cp_mode",
        'draws no dropout in attention (model.attention_dropout = 0.1): use "ulysses"',
        model={"attention_dropout": 0.1},
        parallel={"cp": 2},
    ),
    bad("parallel.cp_mode", "draws no dropout", model={"attention_dropout": 0.1}, parallel={"cp": 2, "cp_mode": "allgather"}),
    bad("slurm.nodes", "not divisible by tp x pp x cp = 1 x 1 x 3", training={"sequence_length": 96}, parallel={"cp": 3}),
    # pipelines
    bad("parallel.pp", "makes 16 stages (vp = 2), more than layers = 8: use pp = 4 or less", parallel={"pp": 8, "vp": 2}),
    bad("parallel.pp", "more than layers = 2", model={"layers": 2}, parallel={"pp": 4}),
    bad("parallel.vp", "interleaved runs several stages a rank: use 2 or more", parallel={"pp": 2, "vp": 1, "schedule": "interleaved"}),
    bad("parallel.vp", "looped-bfs runs several", parallel={"pp": 2, "vp": 1, "schedule": "looped-bfs"}),
    bad("parallel.vp", "interleaved-zero-bubble runs several", parallel={"pp": 2, "vp": 1, "schedule": "interleaved-zero-bubble"}),
    bad("parallel.vp", "zbv runs exactly two stages a rank", parallel={"pp": 2, "vp": 4, "schedule": "zbv"}),
    bad("parallel.vp", "dualpipev runs exactly two", parallel={"pp": 2, "vp": 1, "schedule": "dualpipev"}),
    bad("parallel.vp", "1f1b runs one stage a rank", parallel={"pp": 2, "vp": 2, "schedule": "1f1b"}),
    bad("parallel.vp", "gpipe runs one stage a rank", parallel={"pp": 2, "vp": 2, "schedule": "gpipe"}),
    bad("parallel.vp", "needs a pipeline", parallel={"vp": 2}),
    bad("parallel.stages", "names 3 stages, pp x vp = 2 x 1 are 2", parallel={"pp": 2, "stages": [2, 3, 3]}),
    bad("parallel.stages", "has 7 layers in all, the model has 8", parallel={"pp": 2, "stages": [3, 4]}),
    bad("parallel.stages", "names 2 stages, pp x vp = 2 x 2 are 4", parallel={"pp": 2, "vp": 2, "stages": [4, 4]}),
    bad(
        "training.global_batch",
        "makes 2 micro-batches a step, fewer than pp = 4 stages of 1f1b: use 8 or more",
        training={"global_batch": 4},
        parallel={"pp": 4},
    ),
    bad(
        "training.global_batch",
        "fewer than 2 pp = 4 stages of dualpipev: use 16 or more",
        training={"global_batch": 8},
        parallel={"pp": 2, "schedule": "dualpipev"},
    ),
    bad(
        "training.global_batch",
        "which interleaved cannot run in rounds of pp = 2: use 16 or 24",
        training={"global_batch": 20},
        parallel={"pp": 2, "vp": 2},
    ),
    bad(
        "training.global_batch",
        "which interleaved-zero-bubble cannot run",
        training={"global_batch": 20},
        parallel={"pp": 2, "schedule": "interleaved-zero-bubble"},
    ),
    # data parallelism and the batch
    bad("parallel.dp_shard", "shards nothing: leave dp_shard out", parallel={"dp_shard": 2}),
    bad("parallel.dp_shard", "does not divide dp = 8: use 1, 2, 4 or 8", parallel={"dp_mode": "fsdp", "dp_shard": 3}),
    bad("parallel.dp_shard", "does not divide dp = 4", parallel={"tp": 2, "dp_mode": "zero1", "dp_shard": 8}),
    bad("parallel.dp", "= 8 ranks leaves, 8 / (tp x pp x cp = 4) = 2: write 2", parallel={"tp": 2, "pp": 2, "dp": 4}),
    bad("parallel.ep", "not in this release", parallel={"ep": 2}),
    bad(
        "slurm.nodes",
        "not divisible by tp x pp x cp = 2 x 8 x 1 = 16: use 2 nodes",
        training={"global_batch": 32},
        parallel={"tp": 2, "pp": 8},
    ),
    bad("training.global_batch", "is not a multiple of dp x micro_batch = 8 x 3 = 24: use 24", training={"micro_batch": 3}),
    bad(
        "training.batch_ramp.start",
        "is not a multiple of dp x micro_batch = 8 x 1 = 8",
        training={"batch_ramp": {"start": 4, "increment": 8, "samples": 100}},
    ),
    bad(
        "training.batch_ramp.increment",
        "is not a multiple",
        training={"global_batch": 32, "batch_ramp": {"start": 8, "increment": 4, "samples": 100}},
    ),
    bad(
        "training.batch_ramp.start",
        "must be less than global_batch = 16",
        training={"batch_ramp": {"start": 16, "increment": 8, "samples": 100}},
    ),
    bad(
        "training.batch_ramp.increment",
        "does not lead from start = 8 to global_batch = 32: use 8 or 24",
        training={"global_batch": 32, "batch_ramp": {"start": 8, "increment": 16, "samples": 100}},
    ),
    bad(
        "training.batch_ramp.start",
        "fewer than pp = 4 stages",
        training={"batch_ramp": {"start": 2, "increment": 2, "samples": 100}},
        parallel={"pp": 4},
    ),
    # models
    bad("model.kv_heads", "does not divide heads = 8", model={"kv_heads": 3}),
    bad("model.kv_heads", "gpt2 has no grouped keys", model={**GPT2, "kv_heads": 4}),
    bad("model.head_dim", "must be even", model={"head_dim": 7}),
    bad("model.max_positions", "gpt2 learns its positions: give their number, at least 64", model={**GPT2, "max_positions": None}),
    bad("model.max_positions", "llama turns its positions", model={"max_positions": 64}),
    bad("training.sequence_length", "the model has max_positions = 32", model={**GPT2, "max_positions": 32}),
    bad("model.rope_scaling", "gpt2 has no rotary positions", model={**GPT2, "rope_scaling": ROPE}),
    bad("model.rope_scaling.factor", "must be 1 or more", model={"rope_scaling": {**ROPE, "factor": 0.5}}),
    bad("model.rope_scaling.high_freq_factor", "more than low_freq_factor", model={"rope_scaling": {**ROPE, "low_freq_factor": 4.0}}),
    bad("model.rope_scaling.beta_fast", "more than beta_slow", model={"rope_scaling": {**ROPE, "kind": "yarn", "beta_fast": 1.0}}),
    bad("model.dropout", "must be less than 1", model={"dropout": 1.0}),
    # numerics
    bad("training.reduce_dtype", 'would round the gradients of dtype = "fp32"', training={"reduce_dtype": "bf16"}),
    bad("training.reduce_dtype", "is not for fp16", training={"dtype": "fp16", "reduce_dtype": "bf16"}),
    bad("training.loss_scale.initial", "at least minimum = 4", training={"dtype": "fp16", "loss_scale": {"initial": 2.0, "minimum": 4.0}}),
    bad("training.loss_scale.initial", "a power of two", training={"dtype": "fp16", "loss_scale": {"initial": 1000.0}}),
    bad("training.loss_scale.minimum", "a power of two, such as 1", training={"dtype": "fp16", "loss_scale": {"minimum": 3.0}}),
    bad("training.loss_scale.initial", "than the scale ever grows to", training={"dtype": "fp16", "loss_scale": {"initial": 2.0**65}}),
    bad("training.recompute_every", "recomputes nothing", training={"recompute_every": 2}),
    bad("training.recompute_every", "is more than layers = 8", training={"recompute": "full", "recompute_every": 9}),
    bad("training.ema_decay", "must be less than 1", training={"ema_decay": 1.0}),
    bad("training.matmul", "needs GPUs", training={"matmul": "torchao-fp8"}),
    # optimiser and schedule
    bad("optimizer.name", "tp = 2", optimizer={"name": "muon"}, parallel={"tp": 2}),
    bad("optimizer.name", "adafactor", optimizer={"name": "adafactor"}, parallel={"dp_mode": "fsdp"}),
    bad("optimizer.momentum", "adamw has none", optimizer={"momentum": 0.9}),
    bad("optimizer.decay_steps", 'is of schedule = "wsd"', optimizer={"decay_steps": 10}),
    bad("optimizer.decay_steps", "use at most 90", optimizer={"schedule": "wsd", "warmup_steps": 10, "decay_steps": 95}),
    bad("optimizer.warmup_steps", "give one, such as 100", optimizer={"schedule": "inverse-sqrt"}),
    bad("optimizer.min_lr", "at most lr = 0.0003", optimizer={"min_lr": 1.0}),
    bad("optimizer.min_lr", "constant stays at lr", optimizer={"schedule": "constant", "min_lr": 1e-5}),
    bad("optimizer.total_steps", "constant does not come down", optimizer={"schedule": "constant", "total_steps": 200}),
    bad("optimizer.total_steps", "0 from there on, and training.steps = 100: use 100 or more", optimizer={"total_steps": 99}),
    # evaluation, metrics, data
    bad(
        "target.metric", "is not measured: use loss or held", evaluation={"sets": {"held": "/e"}}, target={"metric": "other", "below": 2.0}
    ),
    bad("evaluation.sets.loss", "cannot name an evaluation set", evaluation={"sets": {"loss": "/e"}}),
    bad("evaluation.first", "there is nothing to evaluate", evaluation={"first": True}),
    bad("evaluation.every_steps", "nothing would be evaluated: use 100 or less", evaluation={"sets": {"held": "/e"}}),
    bad("metrics.profile", "a first and a last step", metrics={"profile": [5, 3]}),
    bad("metrics.profile", "begins after the last step, 100", metrics={"profile": [101, 102]}),
    bad("data.stage", "has no paths.scratch", data={"stage": "local"}),
    bad("data.stage_bytes", "nothing is staged", data={"stage_bytes": 10}),
    bad("data.sources[1].path", "is there twice", data={"sources": [{"path": "/a"}, {"path": "/a"}]}),
]


def refused(sections):
    """What submit does before anything starts."""
    with pytest.raises(ConfigError) as caught:
        check_job(job(**sections), SITE, where="job.toml")
    return caught.value


def test_there_are_enough():
    assert len(CASES) >= 60


@pytest.mark.parametrize(("key", "says", "sections"), CASES)
def test_one_line_names_key_value_and_remedy(key, says, sections):
    error = refused(sections)
    line = str(error)
    assert error.key == key
    assert says in line
    assert line.startswith("job.toml: ")
    assert "\n" not in line
    assert len(line) < 400


USES = re.compile(r"^job\.toml: parallel\.tp = \d+: .*: use ([\d, or]+)$")


@pytest.mark.parametrize(("key", "says", "sections"), [case for case in CASES if case.values[0] == "parallel.tp"])
def test_values_that_would_do_do(key, says, sections):
    form = USES.match(str(refused(sections)))
    assert form
    for tp in re.findall(r"\d+", form[1]):
        better = job(
            **{
                **sections,
                "parallel": {"tp": int(tp), "pp": 1},
                "slurm": {"nodes": 3},
                "training": {**sections.get("training", {}), "global_batch": 24 * 8},
            }
        )
        check_job(better, SITE)


GOOD = {
    "everything at once": {"parallel": {"tp": 2, "cp": 2, "pp": 2}},
    "kv heads copied": {"parallel": {"tp": 8}},
    "ulysses, keys shared": {"parallel": {"cp": 8, "cp_mode": "ulysses"}},
    "v-shaped": {"parallel": {"pp": 4, "schedule": "zbv"}},
    "uneven": {"parallel": {"pp": 4, "stages": [1, 2, 3, 2]}},
    "hybrid shards": {"parallel": {"dp_mode": "fsdp", "dp_shard": 4}},
    "fp16": {"training": {"dtype": "fp16", "recompute": "selective", "recompute_every": 2}},
    "gpt2": {"model": GPT2, "parallel": {"tp": 2}},
    "ramp": {"training": {"global_batch": 32, "batch_ramp": {"start": 8, "increment": 8, "samples": 1000}}},
    "muon": {"optimizer": {"name": "muon"}, "parallel": {"pp": 2}},
    "beyond the schedule's end": {"optimizer": {"total_steps": 50, "min_lr": 1e-5}},
    "nothing to train": {"training": {"steps": 0}},
    "evaluated before the first step alone": {"evaluation": {"sets": {"held": "/e"}, "first": True}},
    "profile of the last step": {"metrics": {"profile": [100, 200]}},
}


@pytest.mark.parametrize("sections", GOOD.values(), ids=GOOD)
def test_what_can_be_is_let_through_and_has_a_plan(sections):
    fits = job(**sections)
    check_job(fits, SITE)
    plan = build_plan(fits, SITE)
    assert sorted(layer for stage in plan.stages for layer in stage) == list(range(8))
    assert sorted(stage for index in range(plan.pp) for stage in plan.stages_of(index)) == list(range(len(plan.stages)))
